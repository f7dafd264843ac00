"""What `trident tune` searches: candidates as configurations, the space that is left, and what counts as better."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.bench.test_measure import level
from trident.app.bench.measure import Level, ServerTimes
from trident.app.bench.tuning import Candidate, Objective, Trial, batchings, copy_model, engines
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


def times(costs: dict[str, float]) -> ServerTimes:
    return ServerTimes(
        requests=1,
        queue=0,
        compute_input=0,
        compute_infer=costs["1"],
        compute_output=0,
        total=1,
        batch=1,
        batches=dict.fromkeys(costs, 10),
        costs=costs,
    )


def test_threads_are_for_models_that_take_long(tmp_path: Path) -> None:
    assert {(each.instances, each.threads) for each in engines(config(), tmp_path, 2)} == {
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    }
    assert {each.threads for each in engines(config(), tmp_path, 2, times({"1": 0.05}))} == {1}
    assert {each.threads for each in engines(config('backend: "python"'), tmp_path, 4)} == {0}


def test_batches_are_for_models_that_gain_by_them_within_the_target() -> None:
    assert [size for size, _ in batchings(config(), times({"1": 1.0, "8": 8.0}), 100)] == [1, 4]
    assert batchings(config(), times({"1": 1.0, "8": 2.0}), 10) == [(1, 0), (4, 0), (16, 0), (16, 1000)]
    assert batchings(config(), times({"1": 9.0}), 10) == batchings(config(), None, 10)
    assert batchings(config('backend: "python"'), None, 10) == []


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
