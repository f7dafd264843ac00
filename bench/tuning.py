"""Measure a batcher with a target beside the best fixed setting; write bench/results/<date>-<cpu>-tuning.*.

    python -m bench tuning                                about 5 minutes
    python -m bench tuning --only steady --seconds 5 --rate 500
    python -m bench tuning --options=--http-workers=2

The model behaves as on an accelerator: an execution takes 4 ms and 0.05 ms for each item, without CPU. The search tries
each delay with each size. The client does not wait for answers: latencies count from the moment at which a request is
due.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import multiprocessing
import random
import selectors
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.results import Figures, Publication, add_publication_arguments, names_among, positive
from bench.servers.server import Server, trident
from tests.contract.servers.ports import HOST
from tests.project import ROOT
from trident.core.config.spec import BatchingSpec, ModelSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.instance import Work, take_work
from trident.core.scheduling.latency_target import BatchSetting, BatchTuner
from trident.core.scheduling.limits import LimitsInForce, Wait, limits_of, may_end
from trident.core.scheduling.queue import RequestQueue

FIXED_MS = 4.0
ITEM_MS = 0.05
LARGEST = 64
TARGET = "target"
BODY = json.dumps({"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()

_CODE = f"""
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        time.sleep({FIXED_MS / 1000} + {ITEM_MS / 1000} * sum(map(len, arrays)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array)]) for array in arrays]
"""
_CONFIG = """\
backend: "python"
max_batch_size: {size}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
{parameters}
"""


def name_of(setting: BatchSetting) -> str:
    return f"delay_{setting.delay_ns // 1000}_size_{setting.max_size}"


def build(repository: Path, target_ms: float, settings: list[BatchSetting]) -> None:
    """Write all models under `repository`, which is emptied first."""
    shutil.rmtree(repository, ignore_errors=True)
    parameter = f'parameters {{ key: "TARGET_P99_MS" value {{ string_value: "{target_ms:g}" }} }}'
    _write(repository / TARGET, _CONFIG.format(size=LARGEST, delay_us=0, parameters=parameter))
    for setting in settings:
        config = _CONFIG.format(size=setting.max_size, delay_us=setting.delay_ns // 1000, parameters="")
        _write(repository / name_of(setting), config)


def _write(folder: Path, config: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / "model.py").write_text(_CODE)


# They are nanoseconds from the beginning, ascending.


_S = 1_000_000_000


def steady(rate: float, seconds: float, seed: int = 1) -> list[int]:
    """`rate` requests per second on average, independent of each other (Poisson)."""
    return _arrivals(lambda at: rate, rate, seconds, seed)


def bursts(rate: float, seconds: float, seed: int = 1, factor: float = 4.0) -> list[int]:
    """As `steady`, but `factor` times as many requests during a fifth of each second."""
    base = rate / (0.8 + 0.2 * factor)
    return _arrivals(lambda at: base * (factor if at % 1 < 0.2 else 1), base * factor, seconds, seed)


def diurnal(rate: float, seconds: float, seed: int = 1) -> list[int]:
    """The rate swings like that of a day, from a fifth of `rate` to 1.8 times as many, twice in `seconds`."""

    def at(second: float) -> float:
        return rate * (1 - 0.8 * math.cos(4 * math.pi * second / seconds))

    return _arrivals(at, 1.8 * rate, seconds, seed)


TRACES: dict[str, Callable[[float, float], list[int]]] = {"steady": steady, "bursts": bursts, "diurnal": diurnal}


def _arrivals(rate: Callable[[float], float], highest: float, seconds: float, seed: int) -> list[int]:
    """Arrivals whose rate changes with the time in seconds and is never above `highest`."""
    source = random.Random(seed)
    found: list[int] = []
    at = 0.0
    while (at := at + source.expovariate(highest)) < seconds:
        if source.random() * highest < rate(at):
            found.append(int(at * _S))
    return found


_MOST_CONNECTIONS = 512
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
# After the last request was due, and for the whole client.
_LAST_S = 20.0
_START_S = 0.3


class OpenLoop:
    """Sends `request`, whole HTTP requests, to `port`; on as many connections as there are requests on the way.

    `latencies` has the nanoseconds from when each request was due to its answer, in the order of `arrivals`; -1 for one
    that was not answered with 200 in time.
    """

    def __init__(self, port: int, request: bytes, arrivals: Sequence[int]) -> None:
        self._port = port
        self._request = request
        self._arrivals = arrivals
        # `select` waits with a precision of microseconds, `epoll` with that of milliseconds.
        self._selector = selectors.SelectSelector()
        self._free: list[socket.socket] = []
        self._asked: dict[socket.socket, tuple[int, bytearray]] = {}
        self.latencies = [-1] * len(arrivals)

    def run(self) -> None:
        """Blocks until all answers are there."""
        self._begin_ns = time.monotonic_ns() + int(_START_S * _S)
        following = 0
        until_ns = self._begin_ns + self._arrivals[-1] + int(_LAST_S * _S)
        while following < len(self._arrivals) or self._asked:
            now_ns = time.monotonic_ns()
            if now_ns > until_ns:
                break
            while following < len(self._arrivals) and self._begin_ns + self._arrivals[following] <= now_ns:
                self._send(following)
                following += 1
            wait_s = 0.05
            if following < len(self._arrivals):
                wait_s = min(wait_s, (self._begin_ns + self._arrivals[following] - time.monotonic_ns()) / _S)
            for key, _ in self._selector.select(max(0.0, wait_s)):
                self._receive(key.fileobj)  # type: ignore[arg-type]
        for sock in [*self._free, *self._asked]:
            sock.close()
        self._selector.close()

    def _send(self, index: int) -> None:
        if self._free:
            sock = self._free.pop()
        elif len(self._asked) < _MOST_CONNECTIONS:
            sock = socket.create_connection((HOST, self._port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ)
        else:
            return  # it counts as not answered
        self._asked[sock] = (index, bytearray())
        sock.sendall(self._request)

    def _receive(self, sock: socket.socket) -> None:
        part = sock.recv(65536)
        index, buffer = self._asked[sock]
        buffer += part
        end = buffer.find(_HEAD_END)
        if part and end < 0:
            return
        head = bytes(buffer[:end]).lower()
        length = int(head.partition(_LENGTH)[2].partition(b"\r\n")[0] or 0)
        if part and len(buffer) < end + len(_HEAD_END) + length:
            return
        del self._asked[sock]
        if head.startswith(b"http/1.1 200"):
            self.latencies[index] = time.monotonic_ns() - self._begin_ns - self._arrivals[index]
        if part:
            self._free.append(sock)
        else:
            self._selector.unregister(sock)
            sock.close()


def open_loop(port: int, path: str, body: bytes, arrivals: Sequence[int]) -> list[int]:
    """The latencies of requests for `path` that are due at `arrivals`, in nanoseconds, from a process of its own."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_run, args=(port, head.encode() + body, arrivals, sender), daemon=True)
    process.start()
    sender.close()
    latencies: list[int] = receiver.recv()
    process.join(_LAST_S)
    return latencies


def _run(port: int, request: bytes, arrivals: Sequence[int], results: Connection) -> None:
    loop = OpenLoop(port, request, arrivals)
    loop.run()
    results.send(loop.latencies)


# A minute of traffic takes a second, and nothing in it depends on the machine.


_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Machine:
    """Instances whose executions take `fixed_ms`, and `item_ms` for each item, give or take `noise` of it."""

    fixed_ms: float
    item_ms: float
    instances: int = 1
    noise: float = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """For each request when it arrived and when its execution ended; and how long the instances were busy, in ns."""

    served: list[tuple[int, int]]
    busy_ns: int
    settings: list[BatchSetting]

    def windows(self, window_ns: int) -> list[list[int]]:
        """The latencies by the window in which the request arrived; without windows in which none did."""
        found: dict[int, list[int]] = {}
        for arrived_ns, end_ns in self.served:
            found.setdefault(arrived_ns // window_ns, []).append(end_ns - arrived_ns)
        return [found[index] for index in sorted(found)]

    def good(self, target_ms: float) -> int:
        """The requests that were answered within the target."""
        return sum(end_ns - arrived_ns <= target_ms * _MS for arrived_ns, end_ns in self.served)


def simulate(
    arrivals: Sequence[int],
    machine: Machine,
    *,
    max_batch_size: int,
    target_ms: float = 0,
    setting: BatchSetting | None = None,
    seed: int = 1,
) -> Outcome:
    """Serve `arrivals` with a target, or with a fixed setting."""
    batching = BatchingSpec(preferred_batch_sizes=(), target_p99_ns=int(target_ms * _MS))
    spec = ModelSpec(
        name="m",
        version=1,
        platform="",
        backend="",
        max_batch_size=max_batch_size,
        inputs={},
        outputs={},
        batching=batching,
    )
    limits = LimitsInForce(limits_of(spec) if setting is None else setting.limits())
    tuner = BatchTuner(spec, limits, ModelStatistics()) if setting is None else None
    if tuner is not None:
        tuner.instances = machine.instances
    return _Simulation(arrivals, machine, limits, tuner, random.Random(seed)).run()


class _Simulation:
    def __init__(
        self,
        arrivals: Sequence[int],
        machine: Machine,
        limits: LimitsInForce,
        tuner: BatchTuner | None,
        source: random.Random,
    ) -> None:
        self._arrivals = arrivals
        self._machine = machine
        self._limits = limits
        self._tuner = tuner
        self._source = source
        self._queue = RequestQueue()
        # When each execution that runs will end, when it began, and its requests; the number breaks ties.
        self._running: list[tuple[int, int, int, list[PendingRequest]]] = []
        self._wait: Wait | None = None
        self._outcome = Outcome([], 0, [])
        self._busy_ns = 0

    def run(self) -> Outcome:
        arrivals, running = self._arrivals, self._running
        at = 0
        while at < len(arrivals) or running or self._queue.size:
            moments = [arrivals[at]] if at < len(arrivals) else []
            moments += [running[0][0]] if running else []
            moments += [self._wait.until_ns] if self._wait is not None else []
            now_ns = min(moments)
            if running and running[0][0] <= now_ns:
                self._end(heapq.heappop(running))
                self._wait = None
            elif at < len(arrivals) and arrivals[at] <= now_ns:
                at += 1
                pending = _request(now_ns)
                self._queue.push(pending)
                if self._wait is not None and may_end(self._wait, pending, self._queue.items):
                    self._wait = None
            else:
                self._wait = None
            if self._wait is None:
                self._begin(now_ns)
        return Outcome(self._outcome.served, self._busy_ns, self._outcome.settings)

    def _begin(self, now_ns: int) -> None:
        """Take all batches that are due, while an instance is free."""
        while len(self._running) < self._machine.instances:
            work = take_work(self._queue, self._limits.current, now_ns)
            if isinstance(work, Work):
                machine = self._machine
                duration_ms = machine.fixed_ms + machine.item_ms * len(work.batch)
                duration_ns = int(duration_ms * _MS * (1 + machine.noise * (2 * self._source.random() - 1)))
                self._busy_ns += duration_ns
                heapq.heappush(self._running, (now_ns + duration_ns, now_ns, id(work), work.batch))
                continue
            self._wait = work if isinstance(work, Wait) else None
            return

    def _end(self, execution: tuple[int, int, int, list[PendingRequest]]) -> None:
        end_ns, begin_ns, _, batch = execution
        self._outcome.served.extend((pending.enqueue_ns, end_ns) for pending in batch)
        if self._tuner is not None:
            before = self._limits.current
            self._tuner.note(batch, begin_ns, end_ns)
            if self._limits.current is not before:
                limits = self._limits.current
                self._outcome.settings.append(BatchSetting(limits.delay_ns, limits.max_batch_size))


def _request(now_ns: int) -> PendingRequest:
    pending = PendingRequest(InferenceRequest("m", []), _nobody)
    pending.enqueue_ns = now_ns
    return pending


def _nobody(response: InferenceResponse) -> None:
    """No client waits."""


BUILD = ROOT / "build" / "bench" / "tuning"
CONDITIONS = "Server, models and client share the cores."
DELAYS_MS = (0, 2, 5)
SIZES = (8, 16, LARGEST)
SETTINGS = [BatchSetting(delay * 1_000_000, size) for delay, size in itertools.product(DELAYS_MS, SIZES)]
# A window of the answers: its 99th percentile is compared with the target.
WINDOW_S = 1.0
WARM_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One model under one load: `good` answers per second in time, the shares of windows under the target, and p99."""

    good: float
    windows: float
    p99_ms: float
    mean_batch: float


def seen_of(arrivals: Sequence[int], latencies: Sequence[int], target_ms: float, mean_batch: float) -> Seen:
    """Without the requests that came while the load began. One without an answer took as long as any."""
    begin_ns = int(WARM_UP_S * 1e9)
    pairs = [(at, latency) for at, latency in zip(arrivals, latencies, strict=True) if at >= begin_ns]
    windows: dict[int, list[float]] = {}
    for at, latency in pairs:
        windows.setdefault(int(at / 1e9 / WINDOW_S), []).append(latency / _MS if latency >= 0 else float("inf"))
    under = [_p99(window) <= target_ms for window in windows.values()]
    good = sum(latency <= target_ms for window in windows.values() for latency in window)
    all_ms = [latency for window in windows.values() for latency in window]
    seconds = (arrivals[-1] - begin_ns) / 1e9
    return Seen(good / seconds, sum(under) / len(under), _p99(all_ms), mean_batch)


def _p99(latencies: Sequence[float]) -> float:
    return sorted(latencies)[int(0.99 * (len(latencies) - 1))]


def measure(server: Server, model: str, arrivals: Sequence[int], target_ms: float) -> Seen:
    items, executions = server.counts(model)
    latencies = open_loop(server.port, f"/v2/models/{model}/infer", BODY, arrivals)
    more_items, more_executions = server.counts(model)
    mean = (more_items - items) / max(1, more_executions - executions)
    seen = seen_of(arrivals, latencies, target_ms, mean)
    print(f"{model}: {seen}", file=sys.stderr, flush=True)
    return seen


def compare(results: Figures, server: Server, name: str, options: argparse.Namespace) -> None:
    """Note what the target and the best fixed setting achieve under one load."""
    arrivals = TRACES[name](options.rate, options.seconds + WARM_UP_S)
    tuned = [measure(server, TARGET, arrivals, options.target)]
    fixed = {}
    for setting in SETTINGS:
        fixed[setting] = measure(server, name_of(setting), arrivals, options.target)
    tuned.append(measure(server, TARGET, arrivals, options.target))
    best = max(SETTINGS, key=lambda setting: (fixed[setting].good, fixed[setting].windows))
    shown = {
        "target": tuned,
        f"best fixed: {best.delay_ns / _MS:g} ms, {best.max_size} items": [fixed[best]],
        "median of all fixed": list(fixed.values()),
    }
    load = f"{name}, {options.rate} requests/s"
    for what, found in shown.items():
        results.note(load, f"{what}: answers in time", "1/s", [seen.good for seen in found])
        results.note(load, f"{what}: windows under the target", "%", [100 * seen.windows for seen in found])
        results.note(load, f"{what}: p99", "ms", [seen.p99_ms for seen in found])
        results.note(load, f"{what}: mean batch", "items", [seen.mean_batch for seen in found])
    mean = sum(seen.good for seen in tuned) / len(tuned)
    results.at_least(load, "answers in time, over those of the best fixed setting", 0.9, mean / fixed[best].good)
    windows = sum(seen.windows for seen in tuned) / len(tuned)
    results.at_least(load, "windows under the target, %", 95, 100 * windows)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench tuning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(TRACES)), default=list(TRACES), help=", ".join(TRACES))
    parser.add_argument("--rate", type=positive, default=800, help="requests per second, on average")
    parser.add_argument("--seconds", type=positive, default=8, help="of each load, without its first two")
    parser.add_argument("--target", type=float, default=40.0, help="for the 99th percentile, in milliseconds")
    parser.add_argument("--options", type=shlex.split, default=[], help="options for the server, in one text")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    BUILD.mkdir(parents=True, exist_ok=True)
    publication = Publication(options)
    results = Figures(shlex.join(["python", "-m", "bench", "tuning", *arguments]), CONDITIONS)
    build(BUILD / "models", options.target, SETTINGS)
    server = trident(BUILD / "models", BUILD / "server.log")
    server.command += options.options
    with server:
        for name in options.only:
            compare(results, server, name, options)
    part = "" if len(options.only) == len(TRACES) else "-" + "-".join(options.only)
    results.publish(publication, f"-tuning{part}")
