"""A server of a stub in memory, which keeps what the library tells it and answers as a test says; hosts of models."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trident_stub import server
from trident_stub.host import ModelHost
from trident_stub.inference import InferenceRequest, InferenceResponse
from trident_stub.model import Phase, RunningModel, TritonModelException, set_running_model


class MemoryStream:
    """Responses that a test puts in. Ends with None."""

    def __init__(self, *responses: InferenceResponse | None) -> None:
        self.cancelled = False
        self._arrived = threading.Condition()
        self._waiting = deque(responses)
        self._listeners: list[Callable[[], None]] = []

    def put(self, response: InferenceResponse | None) -> None:
        with self._arrived:
            self._waiting.append(response)
            self._arrived.notify_all()
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def next(self, timeout: float | None = 10) -> InferenceResponse | None:
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._waiting, timeout):
                raise TimeoutError
            return self._waiting.popleft() if self._waiting[0] is not None else None

    def cancel(self) -> None:
        self.cancelled = True

    def add_listener(self, callback: Callable[[], None]) -> None:
        with self._arrived:
            if not self._waiting:
                self._listeners.append(callback)
                return
        callback()


class MemoryServer:
    """The protocol `trident_stub.server.Server`."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, InferenceResponse | None, bool]] = []
        self.something_was_sent = threading.Event()
        self.cancelled: set[int] = set()
        self.lines: list[tuple[int, str, str, int]] = []
        self.asked: list[tuple[InferenceRequest, bool]] = []
        self.streams: deque[MemoryStream] = deque()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, str] = {}

    def send(self, request_number: int, response: InferenceResponse | None, final: bool) -> None:
        self.sent.append((request_number, response, final))
        self.something_was_sent.set()

    def is_cancelled(self, request_number: int) -> bool:
        return request_number in self.cancelled

    def is_full(self, request_number: int) -> bool:
        return False

    def log(self, level: int, message: str, file: str, line: int) -> None:
        self.lines.append((level, message, file, line))

    def infer(self, request: InferenceRequest, decoupled: bool, within: bool) -> MemoryStream:
        self.asked.append((request, decoupled))
        return self.streams.popleft()

    def call(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((name, fields))
        if name in self.refusals:
            raise TritonModelException(self.refusals[name])
        return self.answers.get(name, {})


MakeHost = Callable[..., ModelHost]


@pytest.fixture
def memory_server() -> Iterator[MemoryServer]:
    """The connected server. The library believes that its model serves."""
    made = MemoryServer()
    server.connect(made)
    set_running_model(RunningModel("model", "/models/model/1", outputs=frozenset("AB"), phase=Phase.SERVING))
    yield made
    server.connect(None)
    set_running_model(RunningModel())


@pytest.fixture
def make_host(memory_server: MemoryServer, tmp_path: Path) -> Iterator[MakeHost]:
    """Makes the host of a model from the source of its file, which it leaves to the test to initialize."""
    path = list(sys.path)
    hosts: list[ModelHost] = []

    def make(source: str, **config: Any) -> ModelHost:
        model_file = tmp_path / "1" / "model.py"
        model_file.parent.mkdir(exist_ok=True)
        model_file.write_text(textwrap.dedent(source))
        args = {
            "model_config": json.dumps({"name": "model", **config}),
            "model_instance_kind": "CPU",
            "model_instance_name": "model_0_0",
            "model_instance_device_id": "0",
            "model_repository": str(tmp_path),
            "model_version": "1",
            "model_name": "model",
        }
        hosts.append(ModelHost(args, str(model_file)))
        return hosts[-1]

    yield make
    for host in hosts:
        host.finalize()
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if name == "1" or str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def begin(make_host: MakeHost) -> MakeHost:
    """As `make_host`, and initializes the model."""

    def made(source: str, **config: Any) -> ModelHost:
        host = make_host(source, **config)
        host.initialize()
        return host

    return made
