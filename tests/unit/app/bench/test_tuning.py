"""What `trident tune` searches: candidates as configurations, the space that is left, and what counts as better."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.bench.test_measure import level
from trident.app.bench.measure import Level, ServerTimes, pooled
from trident.app.bench.requests import Way
from trident.app.bench.tuning import AS_IT_IS, Bench, Candidate, Objective, Trial, batchings, copy_model, engines
from trident.core.config.parse import parse_model_config
from trident.core.config.schema import ModelConfig

CONFIG = """name: "m" platform: "onnxruntime_onnx" max_batch_size: 8
instance_group { count: 1 kind: KIND_CPU } dynamic_batching { preferred_batch_size: 4 }
parameters { key: "intra_op_thread_count" value { string_value: "4" } }"""


def config(text: str = CONFIG) -> ModelConfig:
    return parse_model_config(text, "config.pbtxt")


def test_a_candidate_changes_what_it_says_and_keeps_the_rest(tmp_path: Path) -> None:
    made = Candidate("openvino", instances=2, threads=1, batch=16, delay_us=500).apply(config())

    assert (made.platform, made.backend, made.default_model_filename) == ("", "openvino", "model.onnx")
    assert (made.instance_group[0].count, made.max_batch_size) == (2, 16)
    assert dict(made.parameters.items()).keys() == {"INFERENCE_NUM_THREADS"}
    assert made.dynamic_batching.max_queue_delay_microseconds == 500
    assert not made.dynamic_batching.preferred_batch_size
    assert Candidate().apply(config()) == config()
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"x")
    copy_model(tmp_path / "m", tmp_path / "copy", made)
    assert (tmp_path / "copy" / "1" / "model.onnx").read_bytes() == b"x"
    assert config((tmp_path / "copy" / "config.pbtxt").read_text()) == made


def times(infer_ms: float) -> ServerTimes:
    return ServerTimes(
        requests=1, queue=0, compute_input=0, compute_infer=infer_ms, compute_output=0, total=infer_ms, batch=1
    )


def test_ways_are_left_out_that_the_time_of_a_request_rules_out(tmp_path: Path) -> None:
    def shapes(infer_ms: float, text: str = CONFIG) -> list[tuple[int, int]]:
        return [(each.instances, each.threads) for each in engines(config(text), tmp_path, 4, times(infer_ms))]

    # Threads cost more than they give, all that cores can run is tried, and no way leaves half of the cores idle.
    assert shapes(0.05) == [(4, 1), (2, 1), (1, 1)]
    assert shapes(0.5) == [(4, 1), (2, 2), (2, 1), (1, 4), (1, 2), (1, 1)]
    assert shapes(5) == [(4, 1), (2, 2), (1, 4)]
    assert shapes(5, 'backend: "python"') == [(1, 0), (2, 0), (4, 0)]


def test_batches_are_never_smaller_than_those_that_the_model_accepts() -> None:
    assert batchings(config()) == [16, 64]
    assert batchings(config('backend: "onnxruntime" max_batch_size: 32')) == [32, 64]
    assert batchings(config('backend: "onnxruntime" max_batch_size: 64 dynamic_batching { }')) == []
    assert batchings(config('backend: "python"')) == []


@pytest.mark.parametrize(
    ("rates", "is_chosen"), [((120, 124, 118) * 2, True), ((120, 90, 115) * 2, False), ((120, 124, 118), False)]
)
def test_a_way_that_is_not_shown_to_be_better_leaves_the_model_as_it_is(
    tmp_path: Path, rates: tuple[float, ...], is_chosen: bool
) -> None:
    bench = Bench("m", tmp_path, config(), Objective(target_ms=10), lambda _: [], Way(), lambda _: None)
    other = Candidate(instances=2)
    for candidate, turns in ((AS_IT_IS, (100, 101, 99) * 2), (other, rates)):
        bench.turns[candidate, 1] = [level(1, rate, 5) for rate in turns]
        bench.trials[candidate] = Trial(candidate, raced=[pooled(bench.turns[candidate, 1])])

    assert bench.chosen().candidate == (other if is_chosen else AS_IT_IS)
    assert any(each.verdict == "better" for each in bench.gained(AS_IT_IS, other)) is is_chosen


def trial(*levels: Level, instances: int = 1, memory_mb: float = 100) -> Trial:
    return Trial(Candidate(instances=instances), list(levels), memory_mb=memory_mb)


@pytest.mark.parametrize(
    ("better", "worse", "objective"),
    [
        (
            trial(level(1, 100, 5), level(2, 150, 9)),
            trial(level(1, 120, 5), level(2, 300, 11)),
            Objective(target_ms=10),
        ),
        (trial(level(1, 10, 9)), trial(level(1, 1000, 11)), Objective(target_ms=10)),
        (trial(level(1, 10, 12)), trial(level(1, 1000, 20)), Objective(target_ms=10)),
        (trial(level(1, 500, 5)), trial(level(1, 900, 5), instances=4), Objective(target_ms=10, rate=300)),
        (trial(level(1, 400, 5), instances=4), trial(level(1, 200, 5)), Objective(target_ms=10, rate=300)),
        (trial(level(1, 10, 5)), trial(level(1, 90, 5), memory_mb=900), Objective(target_ms=10, memory_mb=500)),
    ],
)
def test_what_is_better(better: Trial, worse: Trial, objective: Objective) -> None:
    assert objective.value(better) > objective.value(worse)
