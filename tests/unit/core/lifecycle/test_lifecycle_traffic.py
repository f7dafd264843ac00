"""Requests while models are loaded, replaced and unloaded: none fails, and one version answers each."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.project import pure_python_only
from tests.unit import onnx_models
from tests.unit.core.lifecycle.lifecycle_bench import CONFIG, LIMIT_S, Bench, living, put, threads, weight_of, write
from tests.waiting import until
from trident.core.errors import ModelNotFound, ServerStopping
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.lifecycle.state import Phase
from trident.core.repository.sources import LocalSource

RELOADS = 30
CALLERS = 3
BATCHING = """
max_batch_size: 8
dynamic_batching {}
instance_group [ { kind: KIND_CPU count: 2 } ]
"""

explicit = partial(living, control_mode="explicit", load_models=("m",))


def weighted(weight: int) -> bytes:
    """INPUT0 INT32 [batch, 1] -> OUTPUT0, the input plus `weight`, and OUTPUT1, the input times `weight`."""
    tensors = [onnx_models.tensor(name, "INT32", ["batch", 1]) for name in ("INPUT0", "OUTPUT0", "OUTPUT1")]
    nodes = [
        helper.make_node("Add", ["INPUT0", "WEIGHT"], ["OUTPUT0"]),
        helper.make_node("Mul", ["INPUT0", "WEIGHT"], ["OUTPUT1"]),
    ]
    weights = [onnx_models.constant("WEIGHT", [weight], "INT32")]
    model: onnx.ModelProto = onnx_models.build(nodes, tensors[:1], tensors[1:], weights)
    return bytes(model.SerializeToString())


class Caller:
    """Sends requests without a pause on its own thread; `answers` counts the weights that answered."""

    def __init__(self, bench: Bench) -> None:
        self.answers: Counter[int] = Counter()
        self.failures: list[str] = []
        self._bench = bench
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number = number % 1000 + 1
            self._note(number, self._call(number))

    def _call(self, number: int) -> InferenceResponse:
        responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
        tensor = InputTensor("INPUT0", "INT32", (1, 1), np.full((1, 1), number, np.int32))
        self._bench.engine.model("m").submit(PendingRequest(InferenceRequest("m", [tensor]), responses.put))
        return responses.get(timeout=LIMIT_S)

    def _note(self, number: int, response: InferenceResponse) -> None:
        if response.error is not None:
            self.failures.append(response.error.message)
            return
        plus, times = (int(output.array[0, 0]) for output in response.outputs)
        if times != number * (plus - number):
            self.failures.append(f"mixed: {number} became {plus} and {times}")
        self.answers[plus - number] += 1

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


class Noticed(InputTensor):
    """An input for the fake backend. Each check of it first makes the next of `changes`."""

    __slots__ = ("_changes",)

    def __init__(self, *changes: Callable[[], None]) -> None:
        super().__init__("INPUT0", "INT32", (1,), np.zeros(1, np.int32))
        self._changes = list(changes)

    def __getattribute__(self, name: str) -> object:
        changes: list[Callable[[], None]] = super().__getattribute__("_changes") if name == "datatype" else []
        if changes:
            changes.pop(0)()
        return super().__getattribute__(name)


@contextmanager
def calling(bench: Bench) -> Iterator[list[Caller]]:
    callers = [Caller(bench) for _ in range(CALLERS)]
    with callers[0], callers[1], callers[2]:
        yield callers
    assert [failure for caller in callers for failure in caller.failures] == []


@pytest.mark.slow
def test_no_request_fails_while_the_model_is_replaced(tmp_path: Path) -> None:
    model = tmp_path / "m" / "1" / "model.onnx"
    put(model, weighted(1))
    put(tmp_path / "m" / "config.pbtxt", BATCHING)
    with explicit(tmp_path) as bench, calling(bench) as callers:
        for weight in range(2, RELOADS + 2):
            put(model, weighted(weight))
            bench.load("m")
            # From now on the new weights answer every request.
            until(lambda weight=weight: any(caller.answers[weight] for caller in callers))  # type: ignore[misc]
    assert sum((caller.answers for caller in callers), Counter()).keys() == set(range(1, RELOADS + 2))


def test_no_request_fails_while_versions_and_instances_come_and_go(tmp_path: Path) -> None:
    put(tmp_path / "m" / "1" / "model.onnx", weighted(1))
    put(tmp_path / "m" / "config.pbtxt", BATCHING)
    with explicit(tmp_path) as bench, calling(bench):
        for number in range(2, 12):
            put(tmp_path / "m" / str(number) / "model.onnx", weighted(number))
            put(tmp_path / "m" / "config.pbtxt", BATCHING.replace("count: 2", f"count: {number % 3 + 1}"))
            bench.load("m")
            assert bench.version("m").version == number


@pure_python_only
def test_a_request_that_found_a_version_just_before_it_left_is_served_by_the_next(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:

        def reload(weight: str) -> None:
            put(tmp_path / "m" / "1" / "model.fake", weight)
            bench.load("m")

        assert bench.ask("m", tensor=Noticed(partial(reload, "2"))) == 2
        assert bench.ask("m", tensor=Noticed(partial(reload, "3"), partial(reload, "4"), partial(reload, "5"))) == 5
        unload = partial(bench.engine.unload_model, "m", False)
        with pytest.raises(ModelNotFound, match="'m' has no available versions"):
            bench.ask("m", tensor=Noticed(unload))


def test_a_version_that_was_found_and_then_left_passes_requests_on(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        found = bench.engine.model("m")
        put(tmp_path / "m" / "1" / "model.fake", "2")
        bench.load("m")
        until(lambda: bench.backend.models[0].is_closed)
        assert weight_of(bench.submit_to(found, "m")) == 2
        bench.engine.unload_model("m", False, wait=True)
        with pytest.raises(ModelNotFound, match="'m' has no available versions"):
            weight_of(bench.submit_to(found, "m"))


def test_the_version_that_was_found_as_the_latest_serves_though_a_later_one_was_loaded(tmp_path: Path) -> None:
    write(tmp_path, "m", 1, config=CONFIG + "version_policy { all {} }")
    with explicit(tmp_path) as bench:
        found = bench.engine.model("m")
        put(tmp_path / "m" / "2" / "model.fake", "2")
        bench.load("m")
        assert bench.ask("m") == 2
        assert weight_of(bench.submit_to(found, "m")) == 1


def test_a_request_is_answered_by_the_version_that_accepted_it(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        with bench.running("m") as running:
            queued = bench.submit("m")
            put(tmp_path / "m" / "1" / "model.fake", "2")
            bench.load("m")
            assert bench.ask("m") == 2
            assert running.empty()
            assert queued.empty()
            assert not bench.backend.models[0].is_closed
        assert (weight_of(running), weight_of(queued)) == (1, 1)
        until(lambda: bench.backend.models[0].is_closed)


def test_an_unload_returns_while_a_request_runs(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        with bench.running("m") as responses:
            bench.engine.unload_model("m", False)
            assert bench.index() == ["m 1 UNLOADING"]
            assert bench.engine.is_ready()
        bench.until_index("m 1 UNAVAILABLE unloaded")
        assert weight_of(responses) == 1


def test_a_load_does_not_wait_for_an_unload(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        with bench.running("m") as responses:
            bench.engine.unload_model("m", False)
            bench.load("m")
            assert bench.index() == ["m 1 READY"]
            assert bench.ask("m") == 1
            assert not bench.backend.models[0].is_closed
        assert weight_of(responses) == 1
        until(lambda: bench.backend.models[0].is_closed)
        assert bench.index() == ["m 1 READY"]


def test_a_slow_load_delays_no_request(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    write(tmp_path, "other", 1)
    with explicit(tmp_path) as bench:
        put(tmp_path / "m" / "1" / "model.fake", "2")
        loading = threading.Thread(target=bench.load, args=("m",))
        with bench.backend.holding("m"):
            loading.start()
            until(lambda: bench.backend.loads[-1] == "m:1=2")
            assert bench.ask("m") == 1
            bench.load("other")
            assert bench.ask("other") == 1
            bench.engine.unload_model("other", False)
        loading.join(LIMIT_S)
        assert bench.ask("m") == 2


def test_requests_are_refused_while_the_server_stops(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        with bench.running("m") as running:
            bench.engine.begin_exit()
            assert not bench.engine.finish(0)
            with pytest.raises(
                ServerStopping, match="scheduler for model has stopped accepting new inference requests"
            ):
                bench.ask("m")
        assert weight_of(running) == 1


@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_the_exit_does_not_wait_for_a_load(tmp_path: Path, mode: str) -> None:
    for name in ("held", "held too", "waiting"):
        write(tmp_path, name, 1)
    bench = Bench(
        [tmp_path],
        lambda text: LocalSource(Path(text)),
        control_mode=mode,
        load_models=("held", "held too", "waiting") if mode == "explicit" else (),
        load_threads=2,
        poll_secs=0.01,
    )
    with bench.backend.holding("held"), bench.backend.holding("held too"):
        bench.engine.start()
        until(lambda: len(bench.backend.loads) == 2)
        bench.engine.begin_exit()
        assert bench.engine.finish(LIMIT_S)
        assert bench.engine.phase().name == Phase.EXITING
        assert {"trident-lifecycle", "trident-load"} <= set(threads())
    # The held load ends and leaves nothing behind; a load that waited for a thread does not begin.
    until(lambda: threads() == [])
    assert all(model.is_closed for model in bench.backend.models)
    assert len(bench.backend.loads) == 2
