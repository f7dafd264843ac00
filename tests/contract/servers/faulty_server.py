"""`trident serve` with parts that raise for requests whose id is `raise-at-PLACE-CLASS…`, and its repository.

The parts are handed in: the backend of the models, and what stands between the front ends and the engine, in each
process. Every other request is answered with its numbers plus one, by `chain` plus two.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

MARK = "raise-at-"


class Own(Exception):
    """A class of which the server knows nothing."""


class Mute(Exception):
    def __str__(self) -> str:
        raise Own("it has no text")


CLASSES: dict[str, Callable[[], Exception]] = {
    "value": lambda: ValueError("negative dimensions are not allowed"),
    "memory": MemoryError,
    "recursion": lambda: RecursionError("too deep"),
    "unicode": lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    "struct": lambda: struct.error("argument out of range"),
    "overflow": lambda: OverflowError("int too large to convert"),
    "key": lambda: KeyError("x"),
    "own": lambda: Own("half a pair \ud800"),
    "mute": Mute,
}

# By what raises: the backend, the engine as the process sees it that has it, and as a front end sees it.
IN_BACKEND = ("execute", "outcome", "output")
IN_ENGINE = ("engine-before", "engine-after", "engine-answered", "engine-parameters")
IN_FRONT_END = ("client-before", "client-after", "client-answered")


def fault_of(identifier: str, *places: str) -> Exception | None:
    """Exception to raise at one of `places` for the request with this id."""
    if not identifier.startswith(MARK):
        return None
    *place, kind, _ = identifier.removeprefix(MARK).split("-")
    return CLASSES[kind]() if "-".join(place) in places else None


# --- the backend


def make_backend(settings: object) -> FaultyBackend:
    return FaultyBackend()


class FaultyBackend:
    supports_gpus = False

    def inspect(self, path: Path, config: object) -> None: ...

    def check(self, config: object) -> None: ...

    def load(self, context: Any) -> FaultyModel:
        return FaultyModel(is_decoupled=context.spec.decoupled)


class FaultyModel:
    trouble = ""

    def __init__(self, *, is_decoupled: bool) -> None:
        self.labels: dict[str, tuple[str, ...]] = {}
        self._is_decoupled = is_decoupled

    def describe(self) -> dict[str, str]:
        return {"device": "cpu"}

    def watch(self, on_change: object) -> None: ...

    def check_ready(self) -> None: ...

    def processes(self) -> list[Any]:
        return []

    def instance(self, placement: Any) -> FaultyInstance:
        return FaultyInstance(placement, answers_later=self._is_decoupled)

    def retain(self, devices: Iterable[str]) -> None: ...

    def close(self) -> None: ...


class FaultyInstance:
    poisoned = False
    may_run_inline = True

    def __init__(self, placement: Any, *, answers_later: bool) -> None:
        self.placement = placement
        self.answers_later = answers_later

    def execute(self, requests: Sequence[Any], batch_sizes: Sequence[int], senders: Sequence[Any] = ()) -> Any:
        from trident.core.backends.backend import Execution
        from trident.core.inference.pending_request import LATER

        outcomes: list[Any] = [self._outcome(request) for request in requests]
        for index, sender in enumerate(senders):
            if isinstance(outcomes[index], Exception):
                continue
            # One that was answered once fails by itself; what `execute` raises is the error of all in the batch.
            fault = fault_of(requests[index].id, "execute")
            is_unreadable = fault_of(requests[index].id, "output") is not None
            for number in range(1 if fault is not None or is_unreadable else 3):
                sender.send(outcomes[index], final=number == 2 or is_unreadable)
            outcomes[index] = LATER if fault is None else fault
        if not senders:
            for request in requests:
                if (fault := fault_of(request.id, "execute")) is not None:
                    raise fault
        now_ns = time.monotonic_ns()
        return Execution(outcomes, now_ns, now_ns)

    def _outcome(self, request: Any) -> Any:
        from trident.core.inference.response import OutputTensor

        fault = fault_of(request.id, "outcome")
        if fault is not None:
            return fault
        (array,) = (tensor.array + 1 for tensor in request.inputs)
        outputs = [OutputTensor("Y", "INT32", array.shape, array)]
        if (fault := fault_of(request.id, "output")) is not None:
            outputs = [unreadable(fault)]
        return outputs

    def close(self) -> None: ...


def unreadable(fault: Exception) -> Any:
    from trident.core.inference.response import OutputTensor

    class Unreadable(OutputTensor):
        @property
        def array(self) -> Any:
            raise fault

        def content(self) -> Any:
            raise fault

    return Unreadable("Y", "INT32", (1,), np.zeros(1, np.int32))


# --- parts between front ends and engine


class FaultyEngine:
    """The engine `engine`, whose models raise at `prefix`-before, and so on, and whose traces cannot be ended."""

    def __init__(self, engine: Any, prefix: str) -> None:
        self._engine = engine
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def model(self, name: str, version: int = -1, timeout_s: float | None = None) -> Any:
        if name == MARK + self._prefix:
            raise CLASSES["own"]()
        return FaultyServed(self._engine.model(name, version), self._prefix)

    def model_nowait(self, name: str, version: int = -1) -> Any:
        if name == MARK + self._prefix:
            raise CLASSES["own"]()
        found = self._engine.model_nowait(name, version)
        return None if found is None else FaultyServed(found, self._prefix)

    def trace_answered(self, number: int, ahead: Any, behind: Any) -> None:
        raise Own("the trace cannot be ended")


class FaultyServed:
    """A ServedModel."""

    cached_answer = None

    def __init__(self, model: Any, prefix: str) -> None:
        self._model = model
        self._prefix = prefix
        self.spec = model.spec

    def submit(self, pending: Any) -> None:
        from trident.core.errors import BackendFailed
        from trident.core.inference.pending_request import deliver
        from trident.core.inference.response import InferenceResponse

        of = partial(fault_of, pending.request.id)
        fault = of(f"{self._prefix}-before")
        if fault is not None:
            raise fault
        if (fault := of(f"{self._prefix}-answered")) is not None:
            deliver(pending, InferenceResponse.failed(pending.request, BackendFailed("answered, and then raised")))
            raise fault
        if of(f"{self._prefix}-parameters") is not None:
            on_response = pending.on_response

            def respond(response: Any) -> None:
                if response.final:
                    response.parameters = {"p": object()}
                on_response(response)

            pending.on_response = respond
        self._model.submit(pending)
        if (fault := of(f"{self._prefix}-after")) is not None:
            raise fault


def around(engine: Any) -> FaultyEngine:
    return FaultyEngine(engine, "client" if type(engine).__name__ == "RemoteEngine" else "engine")


# --- the server


def serve(settings: Any) -> int:
    from trident.app.serve import server_configuration
    from trident.app.sites.site import ServerParts
    from trident.app.supervisor.arbiter import serve as run_server
    from trident.core.observability.log import configure_logging

    configure_logging(settings.log_options)
    return run_server(server_configuration(settings, ServerParts({"faulty": make_backend}, around)))


def main() -> int:
    from trident.app.cli import main as run

    return run(serve=serve)


class FaultyServer(ServerProcess):
    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.contract.servers.faulty_server", *super().command[1:]]


_TENSORS = """
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
"""
_STEP = """
step { model_name: "plain" model_version: -1 input_map { key: "X" value: "%s" } output_map { key: "Y" value: "%s" } }
"""
_MODELS = {
    "plain": "dynamic_batching { }",
    "ordered": "dynamic_batching { preserve_ordering: true }",
    "cached": "dynamic_batching { } response_cache { enable: true }",
    "numbered": "sequence_batching { oldest { max_candidate_sequences: 64 } }",
    "stream": "model_transaction_policy { decoupled: true } dynamic_batching { }",
}


def write_models(folder: Path) -> Path:
    """A repository of models of the backend."""
    for name, text in _MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(
            f'name: "{name}" backend: "faulty" max_batch_size: 8 {_TENSORS} {text}'
        )
    (folder / "chain" / "1").mkdir(parents=True)
    steps = _STEP % ("X", "T"), _STEP % ("T", "Y")
    (folder / "chain" / "config.pbtxt").write_text(
        f'name: "chain" platform: "ensemble" max_batch_size: 8 {_TENSORS} ensemble_scheduling {{ {" ".join(steps)} }}'
    )
    return folder


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
