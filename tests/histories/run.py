"""A run: a server, clients, faults, and the checks at the end."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.contract.servers.ports import free_ports
from tests.contract.servers.processes import Held, proportional_kb
from tests.contract.servers.server import ServerProcess, environment_without
from tests.contract.servers.session import session_members
from tests.histories.board import SERVER, Board, Cause, Event
from tests.histories.clients import Plan, run_clients
from tests.histories.faults import DEMAND_SHAPES, FAULTS, LIBRARY_SHAPE, SHAPES, Faults
from tests.histories.kinds import BY_KIND, KINDS, PLATFORMS, WrongAnswer, write_all
from tests.histories.library import LibraryProcess
from tests.waiting import until

# Beside those of the class Faults: clients that do harm, a full disk, and the end of the server while clients ask.
HARM = (*FAULTS, "trouble", "disk", "stop")
TRANSPORTS = tuple(dict.fromkeys(each for kind in KINDS for each in kind.transports if each != "library"))
OPTIONS = {
    "model-control-mode": "explicit",
    "load-model": "*",
    "strict-readiness": "false",
    "shutdown-grace-secs": "0",
    "rate-limit": "execution_count",
    "cache-config": "local,size=1048576",
    "allow-client-shm": "true",
}
# At the end, more than there was after the first answers: what processes and models open when they are first asked.
GROWTH_MB = 150
MORE_FILES = MORE_THREADS = 32
WARM_ANSWERS = 2000


@dataclass(frozen=True)
class Setting:
    """Everything that a run depends on."""

    seed: int
    shape: str
    seconds: float
    answers: int = 0
    kinds: tuple[str, ...] = tuple(BY_KIND)
    transports: tuple[str, ...] = TRANSPORTS
    faults: tuple[str, ...] = HARM
    processes: int = 2
    clients: int = 4
    rush: bool = False


@dataclass
class Result:
    """`failure` is empty if every answer was right."""

    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    stop_seconds: float = 0.0
    kind: str = ""
    transport: str = ""
    verdict: str = ""
    failure: str = ""

    def __str__(self) -> str:
        total = self.counts.total()
        by_kind: Counter[str] = Counter()
        by_transport: Counter[str] = Counter()
        for name, count in self.counts.items():
            kind, _, transport = name.partition(" by ")
            by_kind[kind] += count
            by_transport[transport] += count
        lines = [
            f"{total} answers in {self.seconds:.0f} s, {total / max(self.seconds, 1e-9):.0f} a second",
            f"by kind: {dict(by_kind.most_common())}",
            f"by transport: {dict(by_transport.most_common())}",
            f"errors that faults explain: {dict(self.explained.most_common())}",
            f"faults: {dict(self.faults.most_common())}; stopped in {self.stop_seconds:.1f} s",
            f"{self.verdict}: {self.failure}" if self.failure else "0 wrong, 0 lost, 0 twice",
        ]
        return "\n".join(lines)


def run(setting: Setting) -> Result:
    """Start a server and ask it. Raises AssertionError if it does not stop or leaves something."""
    with tempfile.TemporaryDirectory(prefix="histories-") as folder:
        return _Run(setting, Path(folder)).run()


def held_by(server: ServerProcess) -> Held:
    """Memory, threads and open files of all processes of the server."""
    members = session_members(server.process.pid)
    memory = sum(proportional_kb(member) for member in members) >> 10
    threads = sum(len(os.listdir(f"/proc/{member}/task")) for member in members)
    return Held(memory, threads, sum(len(os.listdir(f"/proc/{member}/fd")) for member in members))


def _is_within(held: Held, before: Held) -> bool:
    return (
        held.memory <= before.memory + GROWTH_MB
        and held.threads <= before.threads + MORE_THREADS
        and held.files <= before.files + MORE_FILES
    )


class _Run:
    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting = setting
        self.folder = folder
        self.result = Result()

    def run(self) -> Result:
        setting = self.setting
        is_library = setting.shape == LIBRARY_SHAPE
        self.is_server = not is_library
        transports = tuple(
            name
            for name in setting.transports
            if not (is_library and name in PLATFORMS)  # it opens no such ports
        )
        asked = tuple(name for name in setting.kinds if is_library or not BY_KIND[name].is_function)
        needed = {name for each in asked for name in BY_KIND[each].depends}
        self.kinds = tuple(name for name in BY_KIND if name in needed)
        write_all(self.folder / "models", [BY_KIND[name] for name in self.kinds])
        self.sagemaker, self.vertex = free_ports(2)
        context = multiprocessing.get_context("spawn")
        count = setting.processes * setting.clients
        self.board = Board(context, count + setting.clients * is_library, self.folder)
        with contextlib.ExitStack() as stack:
            self.server = server = self._library(context) if is_library else self._process(stack)
            plan = Plan(
                setting.seed,
                server.http_port,
                server.grpc_port,
                asked,
                transports,
                setting.rush,
                "trouble" in setting.faults,
                self.sagemaker,
                self.vertex,
            )
            if isinstance(server, LibraryProcess):
                server.prepare(plan, self.board, range(count, count + setting.clients))
            stack.enter_context(server)
            processes = []
            for number in range(setting.processes):
                numbers = range(number * setting.clients, (number + 1) * setting.clients)
                process = context.Process(target=run_clients, args=(plan, self.board, numbers))
                process.start()
                processes.append(process)
                stack.callback(process.kill)
            self.faults = Faults(self.board, server, setting.shape, self.kinds, setting.faults, setting.seed)
            self._watch()
            for process in processes:
                process.join(120)
                for region in Path("/dev/shm").glob(f"histories-{process.pid}-*"):
                    region.unlink()  # of a process that ended itself
            self._gather()
            if self.result.failure:
                server.was_killed = True
        return self.result

    def _process(self, stack: contextlib.ExitStack) -> ServerProcess:
        platforms = {
            "allow-sagemaker": "true",
            "sagemaker-port": self.sagemaker,
            "allow-vertex-ai": "true",
            "vertex-ai-port": self.vertex,
            "vertex-ai-default-model": "plain",
        }
        of_models = dict(OPTIONS)
        if self.setting.shape in DEMAND_SHAPES:
            del of_models["load-model"]
            of_models |= {"model-control-mode": "demand", "model-idle-secs": "1"}
        named = {"platform": "plain", **of_models, **(platforms if "plain" in self.kinds else {})}
        options = [*(f"--{name}={value}" for name, value in named.items()), *SHAPES[self.setting.shape]]
        options.append("--backend-config=python,shared-memory-byte-size=1048576")
        if self.setting.shape not in ("one-process", "demand"):
            options.append(f"--http-worker-memory-bytes={8 << 20}")
        if "disk" in self.setting.faults and (disk := self._small_disk(stack)) is not None:
            settings = (f"triton,file={disk}/trace", "level=TIMESTAMPS", "rate=20")
            options += [f"--trace-config={each}" for each in settings]
        environment = {
            **environment_without("TRIDENT_", "AIP_", "SAGEMAKER_"),
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "plain",
            "AIP_PREDICT_ROUTE": "/predict",
        }
        return ServerProcess(self.folder / "models", self.folder / "log", *options, environment=environment)

    def _small_disk(self, stack: contextlib.ExitStack) -> Path | None:
        """A folder that is soon full, where this user may mount one."""
        folder = self.folder / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
            return None
        stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
        self.result.faults["full disk"] += 1
        return folder

    def _library(self, context: Any) -> LibraryProcess:
        options = {name.replace("-", "_"): value for name, value in OPTIONS.items() if name != "shutdown-grace-secs"}
        return LibraryProcess(context, self.folder / "models", self.folder / "log", options)

    # --- the course

    def _watch(self) -> None:
        setting, board = self.setting, self.board
        start = time.monotonic()
        self._wait(lambda: sum(board.answers) >= WARM_ANSWERS or time.monotonic() - start > setting.seconds / 4)
        before = self._held()
        self.faults.start()
        self._wait(
            lambda: (
                sum(board.answers) >= setting.answers if setting.answers else time.monotonic() - start > setting.seconds
            )
        )
        self.result.seconds = time.monotonic() - start
        self.faults.is_ending = True
        self.faults.join()
        if not board.is_over:
            self._check_held(before)
        if not board.is_over and not self.result.failure and "stop" in setting.faults and self.is_server:
            self._stop()
        board.phase[0] = 2

    def _wait(self, is_enough: Any) -> None:
        while not (self.board.is_over or is_enough()):
            time.sleep(0.05)

    def _held(self) -> Held:
        """Measure the server's resources while there are no requests and connections."""
        if self.board.is_over:
            return Held(0, 0, 0)
        self.board.phase[0] = 1
        until(lambda: self.board.is_over or all(self.board.paused), "the clients do not pause", limit_s=120)
        found = held_by(self.server)
        if not self.board.is_over:
            self.board.phase[0] = 0
        return found

    def _check_held(self, before: Held) -> None:
        self.board.phase[0] = 1
        until(lambda: self.board.is_over or all(self.board.paused), "the clients do not pause", limit_s=120)
        try:
            until(lambda: _is_within(held_by(self.server), before), limit_s=20)
        except AssertionError:
            self.result.verdict = "left"
            self.result.failure = f"{held_by(self.server)}, and before the run {before}"

    def _stop(self) -> None:
        """End the server while clients ask."""
        self.board.begin(Cause.DEATH, SERVER)
        self.board.phase[0] = 0
        asked = sum(self.board.answers)
        self._wait(lambda: sum(self.board.answers) > asked + 500)
        start = time.monotonic()
        self.server.stop()
        self.result.stop_seconds = time.monotonic() - start
        self.result.faults["stop"] += 1

    # --- the end

    def _gather(self) -> None:
        result = self.result
        self.events: list[Event] = []
        failures = []
        for path in sorted(self.folder.glob("client-*.json")):
            document = json.loads(path.read_text())
            result.counts.update(document["counts"])
            result.explained.update(document["explained"])
            self.events += [Event(**event) for event in document["recent"]]
            if document["failure"]:
                failures.append({**document["failure"], "client": document["client"]})
        result.faults.update(self.faults.counts)
        if failures:
            first = min(failures, key=lambda each: each.get("end", 0.0))
            result.verdict = first["verdict"]
            result.kind, result.transport = first.get("model", ""), first.get("transport", "")
            result.failure = self._history(first)
        elif self.faults.failure:
            result.verdict, result.failure = "fault", self.faults.failure
        elif "Traceback" in self.server.log_text() and not result.failure:
            text = self.server.log_text()
            at = text.index("Traceback")
            result.verdict, result.failure = "log", text[max(0, at - 1000) : at + 3000]

    def _history(self, failure: dict[str, Any]) -> str:
        """Events between the start and the end of the request, of the models that it depends on."""
        start = failure.get("began", failure.get("start", 0.0))
        end = failure.get("end", time.monotonic())
        kind = BY_KIND.get(failure.get("model", ""))
        depends = set(kind.depends) if kind else set()
        lines = [
            f"{failure['text']}",
            f"of {failure.get('model')} by {failure.get('transport')}, tag {failure.get('tag')}",
        ]
        if (owner := self._owner(failure)) is not None:
            lines.append(f"it is the answer to tag {owner.tag} of client {owner.client}, by {owner.transport}")
        happened = [(at, to, text) for at, to, text in self.faults.happened if to >= start - 1 and at <= end]
        happened += [
            (
                event.start,
                event.end,
                f"client {event.client} {event.kind} by {event.transport} {event.tag} {event.result}",
            )
            for event in self.events
            if event.end >= start
            and event.start <= end
            and (event.kind in depends or event.client == failure["client"])
        ]
        lines += [f"  {at - start:+.4f} to {to - start:+.4f} s: {text}" for at, to, text in sorted(happened)[-60:]]
        lines.append(f"  +0.0000 to {end - start:+.4f} s: this one")
        lines.append(self.server.log_text()[-2000:])
        return "\n".join(lines)

    def _owner(self, failure: dict[str, Any]) -> Event | None:
        """The request that the wrong answer belongs to, if a client still knows it."""
        found = failure.get("found")
        if failure["verdict"] != "wrong" or not found or not found[0]:
            return None
        answers = [
            {name: np.array(data, dtype).reshape(shape) for name, (dtype, shape, data) in one.items()}
            for one in found
            if all(np.prod(shape) <= len(data) for _, shape, data in one.values())
        ]
        for event in self.events:
            kind = BY_KIND[event.kind]
            if kind.is_sequence:
                continue
            random = Random(self.setting.seed << 80 | event.tag)
            question = kind.question(event.tag, random)
            with contextlib.suppress(WrongAnswer, KeyError, ValueError, TypeError, IndexError):
                weights = kind.weights(question, answers)
                if all(
                    0 < (weight or 1) <= self.board.weight(model)
                    for model, weight in zip(kind.models, weights, strict=True)
                ):
                    return event
        return None
