"""Faults and changes while clients ask: reloads, unloads, and the end of processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.contract.lifecycle.changing_models import control, state
from tests.contract.python.python_models import children_of
from tests.contract.servers.processes import engines_of, front_ends_of, stopped
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import session_members
from tests.histories.board import SERVER, Board, Cause
from tests.histories.kinds import BY_KIND, WIDTH, Hanging, Kind
from tests.waiting import until

# Names of faults, and how often each is chosen.
FAULTS = {"reload": 30, "unload": 4, "evict": 30, "pause": 3, "stub": 3, "hang": 1, "front end": 1, "engine": 1}
# Their models are loaded by what asks for them.
DEMAND_SHAPES = ("demand", "demand-front-ends")
LIBRARY_SHAPE = "library"
SHAPES = {
    "one-process": ("--http-workers=0",),
    "front-ends": ("--http-workers=2",),
    "engines": ("--http-workers=2", "--engines=2"),
    "demand": ("--http-workers=0",),
    "demand-front-ends": ("--http-workers=2",),
    # Its engine is the process of the caller.
    LIBRARY_SHAPE: (),
}


class Faults(threading.Thread):
    """Makes a fault, waits until the server is well again and some answers more have come, and so on.

    `happened` are lines of the history: start, end, text. `failure` says what the server did not do.
    """

    def __init__(
        self,
        board: Board,
        server: ServerProcess,
        shape: str,
        kinds: tuple[str, ...],
        faults: tuple[str, ...],
        seed: int,
    ) -> None:
        super().__init__(name="faults")
        self.happened: list[tuple[float, float, str]] = []
        self.counts: Counter[str] = Counter()
        self.failure = ""
        self.is_ending = False
        self.board = board
        self._server = server
        self._shape = shape
        self._kinds = [BY_KIND[name] for name in kinds]
        self._random = Random(seed)
        self._faults = {name: FAULTS[name] for name in faults if name in FAULTS}
        if "hanging" not in kinds:
            self._faults.pop("hang", None)
        if shape in ("one-process", "demand", LIBRARY_SHAPE):
            self._faults.pop("front end", None)
        self._is_on_demand = shape in DEMAND_SHAPES
        self._faults.pop("unload" if self._is_on_demand else "evict", None)
        if shape == LIBRARY_SHAPE:
            self._faults.pop("engine", None)

    def run(self) -> None:
        made: dict[str, Callable[[], str]] = {
            "reload": self._reload,
            "unload": self._unload,
            "evict": self._evict,
            "stub": self._kill_stub,
            "front end": self._kill_front_end,
            "engine": self._kill_engine,
            "pause": self._pause,
            "hang": self._hang,
        }
        name = ""
        try:
            while self._faults and self._go_on():
                (name,) = self._random.choices(list(self._faults), list(self._faults.values()))
                start = time.monotonic()
                text = made[name]()
                self.happened.append((start, time.monotonic(), f"{name} {text}"))
                self.counts[name] += 1
        except Exception as error:
            self.failure = f"{name}: {type(error).__name__}: {error}"
            self.board.phase[0] = 2

    def _go_on(self) -> bool:
        """Wait for some more answers. False at the end."""
        before = sum(self.board.answers)
        wanted = before + self._random.choice((20, 200, 1000))
        limit = time.monotonic() + 5
        while (
            self.board.phase[0] == 0
            and not self.is_ending
            and sum(self.board.answers) < wanted
            and time.monotonic() < limit
        ):
            time.sleep(0.01)
        while self.board.phase[0] == 1:
            time.sleep(0.01)
        return not (self.board.is_over or self.is_ending)

    @contextlib.contextmanager
    def _explaining(self, cause: Cause, scope: str) -> Iterator[None]:
        self.board.begin(cause, scope)
        yield
        self.board.end(cause, scope)

    # --- models

    def _reload(self) -> str:
        kind = self._random.choice([each for each in self._kinds if each.has_weight])
        weight = self.board.raise_most(kind.name)
        with self._explaining(Cause.RELOAD, kind.name):
            kind.set_weight(self._server.repository, weight)
            self._load(kind)
        self.board.raise_least(kind.name)
        return f"{kind.name} with {weight}"

    def _load(self, kind: Kind) -> None:
        answer = self._try_load(kind)
        assert answer == (200, ""), f"load of {kind.name}: {answer}"

    def _try_load(self, kind: Kind) -> tuple[int, str]:
        return control(self._server, f"/v2/repository/models/{kind.name}/load")

    def _unload(self) -> str:
        kind = self._random.choice([each for each in self._kinds if not each.is_function])
        with self._explaining(Cause.UNLOAD, kind.name):
            answer = control(self._server, f"/v2/repository/models/{kind.name}/unload")
            assert answer == (200, ""), f"unload of {kind.name}: {answer}"
            until(lambda: state(self._server, kind.name) == "UNAVAILABLE", f"{kind.name} is not unloaded")
            self._load(kind)
            for other in self._kinds:
                if kind.name in other.depends:
                    until(lambda name=other.name: self._is_ready(name), f"{other.name} is not ready again")
        return kind.name

    def _evict(self) -> str:
        """Let a model go that the next request loads again: it explains no error. A sequence would end."""
        kind = self._random.choice([each for each in self._kinds if not (each.is_function or each.is_sequence)])
        answer = control(self._server, f"/v2/repository/models/{kind.name}/unload")
        assert answer == (200, ""), f"unload of {kind.name}: {answer}"
        return kind.name

    def _is_ready(self, model: str) -> bool:
        return self._answers(f"/v2/models/{model}/ready?load=true")

    def _answers(self, path: str) -> bool:
        try:
            return self._server.request("GET", path)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    # --- processes

    def _stubs(self) -> dict[str, int]:
        """The processes of Python models by the names of the instances."""
        found = children_of(*session_members(self._server.process.pid))
        return {name: process for process, name in found.items() if name.rsplit("_", 2)[0] in BY_KIND}

    def _kill_stub(self) -> str:
        stubs = self._stubs()
        names = sorted(stubs)
        if not names:
            return "of no model"
        name = self._random.choice(names)
        model = name.rsplit("_", 2)[0]
        with self._explaining(Cause.DEATH, model):
            self._kill(stubs[name])
            until(lambda: self._stubs().get(name, stubs[name]) != stubs[name], f"{name} does not come back")
            until(
                lambda: self._is_ready(model),
                lambda: f"{model} is not ready again\n{self._server.log_text()[-6000:]}",
            )
        return name

    def _kill_front_end(self) -> str:
        return self._kill_one(front_ends_of)

    def _kill_engine(self) -> str:
        return self._kill_one(engines_of)

    def _kill_one(self, of: Callable[[Any], list[int]]) -> str:
        processes = of(self._server)
        process = self._random.choice(processes)
        with self._explaining(Cause.DEATH, SERVER):
            self._kill(process)
            until(lambda: len(set(of(self._server)) - {process}) == len(processes), "no process instead of the killed")
            until(self._is_well, lambda: f"not well again: {self._unwell()}\n{self._server.log_text()[-3000:]}")
            # Of several engines one may still be starting. Until it has, no model can be loaded.
            until(lambda: self._try_load(self._kinds[0])[0] == 200, "no model can be loaded")
        return f"{process}"

    def _is_well(self) -> bool:
        """True if every process serves every model. Connections are spread over the front ends."""
        if not all(self._answers("/v2/health/ready") for _ in range(20)):
            return False
        return not self._unwell()

    def _unwell(self) -> list[Any]:
        """The models that neither serve nor are registered; on demand some come and go at any moment."""
        index = self._server.json("POST", "/v2/repository/index")
        well = {"READY", "LOADING", "UNLOADING"} if self._is_on_demand else {"READY"}
        return [
            entry
            for entry in index
            if entry.get("state") not in well and not entry.get("reason", "").startswith("REGISTERED")
        ]

    def _kill(self, process: int) -> None:
        os.kill(process, signal.SIGKILL)
        until(lambda: not os.path.exists(f"/proc/{process}"), f"{process} lives on")

    def _hang(self) -> str:
        """A request that never ends is ended by the model's limit, and the model serves again."""
        item = {"name": "IN", "datatype": "INT32", "shape": [1, WIDTH], "data": [Hanging.HANGS] * WIDTH}
        with self._explaining(Cause.DEATH, "hanging"):
            body = json.dumps({"inputs": [item]}).encode()
            status, _, answer = self._server.request("POST", "/v2/models/hanging/infer", body)
            assert status in (500, 503), f"a request that hangs was answered with {status} {answer!r}"
            until(lambda: self._is_ready("hanging"), "the model that hung is not ready again")
        return "for its limit"

    def _pause(self) -> str:
        """Stop a process for a while: answers are late but correct."""
        workers = [*session_members(self._server.process.pid), *self._stubs().values()]
        process = self._random.choice(workers)
        with stopped([process]):
            time.sleep(self._random.choice((0.01, 0.1, 0.5)))
        return str(process)
