"""Several engines as one: which of them gets a request, and what they answer together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit import onnx_models
from tests.unit.core.remote.remote_parts import (
    LIMIT_S,
    SMALL,
    Answer,
    Pooled,
    ServedEngine,
    ask,
    assert_served,
    numbers,
    pooled,
)
from tests.waiting import until
from trident.core.config.spec import BatchingSpec, ModelSpec
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.errors import InvalidRequest, ModelNotFound
from trident.core.lifecycle.options import EngineOptions, EnginePlace
from trident.core.lifecycle.state import ModelState, Phase, ServingPhase
from trident.core.observability.tracing.settings import TraceOptions
from trident.core.remote.calls import EngineGone
from trident.core.remote.pool import EnginePool, home_of, least_busy


def test_the_less_busy_engine_is_chosen_and_equal_ones_take_turns() -> None:
    for turn in range(4):
        assert least_busy([3, 1], turn) == 1
        assert least_busy([1, 3], turn) == 0
    assert [least_busy([5, 5], turn) for turn in range(4)] == [0, 1, 0, 1]
    assert Counter(least_busy([0] * 5, turn) for turn in range(20)) == dict.fromkeys(range(5), 4)
    assert {least_busy([7], turn) for turn in range(3)} == {0}


def test_every_pair_of_engines_is_compared() -> None:
    busiest = {
        least_busy([0 if each == free else 9 for each in range(4)], turn) for free in range(4) for turn in range(12)
    }
    assert busiest == {0, 1, 2, 3}
    for free in range(4):
        chosen = Counter(least_busy([0 if each == free else 9 for each in range(4)], turn) for turn in range(12))
        assert chosen[free] == 6, "it is in half of the pairs"


def test_state_stays_with_its_engine() -> None:
    homes = {key: home_of(f"sequence {key}", [0, 1, 2]) for key in range(3000)}
    assert all(800 < count < 1200 for count in Counter(homes.values()).values())
    assert homes == {key: home_of(f"sequence {key}", [0, 1, 2]) for key in range(3000)}
    for key in range(300):
        before = home_of(f"sequence {key}", [0, 1, 2])
        after = [0, 2][home_of(f"sequence {key}", [0, 2])]
        assert after == before or before == 1
    assert home_of("sequence \udcff\0", [0, 1]) in (0, 1)


class Named(ServedEngine):
    """An engine that counts its requests."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.seen: list[int | str] = []
        self.spec_changes: dict[str, Any] = {}

    def submit(self, pending) -> None:  # type: ignore[no-untyped-def]
        self.seen.append(pending.request.correlation_id)
        super().submit(pending)

    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        return replace(super().model_spec(name, version), **self.spec_changes)


@pytest.fixture
def engines() -> list[Named]:
    return [Named(), Named()]


@pytest.fixture
def pool(engines: list[Named], tmp_path: Path) -> Iterator[Pooled]:
    with pooled(tmp_path, engines) as found:
        yield found


# --- requests


def test_a_busy_engine_gets_fewer(pool: Pooled, engines: list[Named]) -> None:
    engines[0].respond = lambda request: None
    answers = [ask(pool[0], numbers(SMALL)) for _ in range(2)]
    until(lambda: len(engines[0].seen) + len(engines[1].seen) == 2)
    answers += [ask(pool[0], numbers(SMALL)) for _ in range(1)]
    for _ in range(10):
        ask(pool[0], numbers(SMALL)).get()
    assert len(engines[0].seen) <= 2
    for answer in answers:
        answer.pending.cancel()
        answer.get()


def test_large_inputs_are_read_where_they_were_received(pool: Pooled, engines: list[Named]) -> None:
    bodies = [pool[0].allocate(100_000) for _ in range(3)]  # there is room for one in the memory of each engine
    assert bodies[2] is None
    for body in bodies[:2]:
        assert body is not None
        body[:] = 1
        for _ in range(3):
            assert ask(pool[0], numbers(body.view(np.int32))).get().error is None
    assert [len(engine.seen) for engine in engines] == [3, 3]


def test_a_sequence_stays_with_one_engine(pool: Pooled, engines: list[Named]) -> None:
    for _ in range(3):
        for correlation_id in [*range(1, 11), "text"]:
            ask(pool[0], numbers(SMALL, correlation_id=correlation_id)).get()
    assert not set(engines[0].seen) & set(engines[1].seen)
    assert set(Counter(engines[0].seen).values()) == set(Counter(engines[1].seen).values()) == {3}


@pytest.mark.parametrize(("keeps_answers", "most"), [(True, 20), (False, 10)])
def test_a_model_whose_answers_an_engine_keeps_has_one_engine(
    engines: list[Named], tmp_path: Path, keeps_answers: bool, most: int
) -> None:
    for engine in engines:
        engine.spec_changes = {"response_cache": True}
    with pooled(tmp_path, engines, keeps_answers=keeps_answers) as (pool, _):
        for _ in range(20):
            ask(pool, numbers(SMALL)).get()
    assert max(len(engine.seen) for engine in engines) == most


@pytest.mark.parametrize(("preserve_ordering", "most"), [(True, 20), (False, 10)])
def test_a_model_whose_responses_keep_their_order_has_one_engine(
    engines: list[Named], tmp_path: Path, preserve_ordering: bool, most: int
) -> None:
    batching = BatchingSpec(preferred_batch_sizes=(1,), preserve_ordering=preserve_ordering)
    for engine in engines:
        engine.spec_changes = {"batching": batching}
    with pooled(tmp_path, engines) as (pool, _):
        for _ in range(20):
            ask(pool, numbers(SMALL)).get()
    assert max(len(engine.seen) for engine in engines) == most


def test_a_model_that_one_engine_has_is_served_by_it(pool: Pooled, engines: list[Named]) -> None:
    engines[1].versions["own"] = (1,)
    request = numbers(SMALL)
    request.model_name = "own"
    assert ask(pool[0], request).get().error is None
    assert [len(engine.seen) for engine in engines] == [0, 1]
    with pytest.raises(ModelNotFound):
        pool[0].model("nobody's")


def test_a_trace_is_ended_in_its_engine(pool: Pooled, engines: list[Named]) -> None:
    for number in (1, 2, 3, 4):
        pool[0].trace_answered(number, [], [])
    until(lambda: sum(len(engine.calls) for engine in engines) == 4)
    assert [[call[1] for call in engine.calls] for engine in engines] == [[1, 3], [2, 4]]


# --- the loss of an engine


def test_the_loss_of_an_engine_concerns_only_its_requests(pool: Pooled, engines: list[Named]) -> None:
    front, those = pool
    for engine in engines:
        engine.respond = lambda request: None
    waiting = [ask(front, numbers(SMALL)) for _ in range(4)]
    until(lambda: [len(engine.seen) for engine in engines] == [2, 2])
    those[1].end()
    until(lambda: sum(answer.is_there for answer in waiting) == 2)
    assert all(isinstance(answer.get().error, EngineGone) for answer in waiting if answer.is_there)
    assert (front.is_ready(), front.is_live(), front.phase().name) == (True, True, Phase.READY)
    engines[0].respond = ServedEngine().respond
    assert_served(front)
    for answer in waiting:
        answer.pending.cancel()
    those[1].begin()
    engines[1].respond = ServedEngine().respond
    engines[1].seen.clear()

    def has_rejoined() -> bool:
        ask(front, numbers(SMALL)).get()
        return bool(engines[1].seen)

    until(has_rejoined, "the engine gets no requests")


def test_without_any_engine_the_front_end_says_so(pool: Pooled) -> None:
    front, those = pool
    for each in those:
        each.end()
    until(lambda: not front.is_ready())
    assert (front.is_live(), front.phase().name) == (True, Phase.ENGINE_DOWN)
    with pytest.raises(EngineGone):
        front.model("simple")
    with pytest.raises(EngineGone):
        front.metrics()


def test_the_server_is_ready_when_all_engines_are(engines: list[Named], tmp_path: Path) -> None:
    engines[1].ready = False
    engines[1].serving = ServingPhase(name=Phase.LOADING, model="simple", done=1, total=2)
    with pooled(tmp_path, engines, ready=False) as (front, _):
        until(lambda: front.phase().name is Phase.LOADING)
        assert not front.is_ready()
        engines[1].ready = True
        engines[1].serving = ServingPhase(name=Phase.READY)
        until(front.is_ready)
        engines[1].ready = False
        until(lambda: front.phase().name is Phase.READY)
        assert front.is_ready(), "the other one serves"
    assert not front.is_ready()


# --- real engines


@pytest.fixture
def real(tmp_path: Path) -> Iterator[EnginePool]:
    """Two engines of one server, with the model `double` and without `other`, which may be loaded."""
    repository = tmp_path / "models"
    for name in ("double", "other"):
        onnx_models.write_version(onnx_models.identity("FP32"), repository, name, "max_batch_size: 8")
    with ExitStack() as stack:
        engines = [_real_engine(repository, EnginePlace(index, 2)) for index in range(2)]
        for engine in engines:
            stack.callback(engine.finish, LIMIT_S)
        front, _ = stack.enter_context(pooled(tmp_path, engines))
        yield front


def _real_engine(repository: Path, place: EnginePlace) -> InferenceEngine:
    tracing = TraceOptions(numbers=(1 + place.index, place.count))
    options = EngineOptions(
        repositories=(str(repository),), control_mode="explicit", load_models=("double",), place=place, tracing=tracing
    )
    engine = make_engine(options)
    engine.start()
    assert engine.wait_loaded(LIMIT_S)
    return engine


def infer(front: EnginePool, count: int, model: str = "double", version: int = -1) -> None:
    answers: list[Answer] = []
    for number in range(count):
        request = numbers(np.array([[number]], np.float32), "INPUT0", "FP32")
        request.model_name, request.model_version = model, version
        answers.append(ask(front, request))
    for number, answer in enumerate(answers):
        assert answer.get().error is None, answer.get().error
        assert answer.get().outputs[0].array.tolist() == [[number]]


def test_statistics_and_metrics_are_those_of_one_server(real: EnginePool) -> None:
    infer(real, 40)
    (found,) = real.model_statistics("double")
    assert (found.statistics.request_success, found.statistics.inference_count) == (40, 40)
    (metrics,) = real.metrics().models
    assert metrics.statistics.request_success == 40
    assert sum(load.count for load in real.metrics().loads) == 2
    with pytest.raises(InvalidRequest):
        real.model_statistics("unknown")


def test_a_model_is_loaded_and_unloaded_in_all_engines(real: EnginePool) -> None:
    real.load_model("other", {})
    assert real.is_model_ready("other")
    infer(real, 10, "other")
    assert [(entry.name, entry.state) for entry in real.repository_index(True)] == [
        ("double", ModelState.READY),
        ("other", ModelState.READY),
    ]
    real.unload_model("other", False, wait=True)
    with pytest.raises(ModelNotFound):
        real.model("other")
    assert [entry.name for entry in real.repository_index(True)] == ["double"]


def test_a_hold_is_kept_by_the_engine_that_gave_it(real: EnginePool) -> None:
    held = [real.hold_version("double") for _ in range(4)]
    assert len(set(held)) >= 2
    for number in held:
        infer(real, 2, version=number)
    real.unload_model("double", False)
    for number in held:
        infer(real, 2, version=number)
        real.release_version("double", number)
    with pytest.raises(ModelNotFound):
        real.model("double")
