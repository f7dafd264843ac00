"""The search of `trident tune`: candidates as configurations, the remaining space, and the ranking."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.tools.bench.test_measure import level
from trident.core.backends.openvino import compiler
from trident.core.backends.registry import DeviceSupport, ProviderState
from trident.core.config.schema import ModelConfig, parse_model_config
from trident.tools.bench import candidates
from trident.tools.bench.candidates import Candidate, Executions, engines, promises
from trident.tools.bench.measure import Level, pooled
from trident.tools.bench.requests import Encoding
from trident.tools.bench.tune import memory_text
from trident.tools.bench.tuning import AS_IT_IS, Bench, Objective, Trial, copy_model

CONFIG = """name: "m" platform: "onnxruntime_onnx" max_batch_size: 8
instance_group { count: 1 kind: KIND_CPU } dynamic_batching { preferred_batch_size: 4 }
parameters { key: "intra_op_thread_count" value { string_value: "4" } }"""


def config(text: str = CONFIG) -> ModelConfig:
    return parse_model_config(text, "config.pbtxt")


def test_a_candidate_changes_its_settings_only(tmp_path: Path) -> None:
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


def test_a_batch_size_limits_the_batcher_but_not_requests() -> None:
    unbatched = Candidate(batch=1).apply(config())
    assert (unbatched.max_batch_size, unbatched.HasField("dynamic_batching")) == (8, False)
    limited = Candidate(batch=4).apply(config("max_batch_size: 8 dynamic_batching { preserve_ordering: true }"))
    assert (limited.max_batch_size, limited.dynamic_batching.preferred_batch_size) == (8, [4])
    assert limited.dynamic_batching.preserve_ordering


def test_padded_batches_end_with_the_largest() -> None:
    made = Candidate(batch=12, pads_batches=True, lengths=(4, 8)).apply(config())
    assert made.parameters["BATCH_BUCKETS"].string_value == "1,2,4,8,12"
    assert made.parameters["LENGTH_BUCKETS"].string_value == "4,8"
    own = config(CONFIG + 'parameters { key: "BATCH_BUCKETS" value { string_value: "2,8" } }')
    assert Candidate(batch=16).apply(own).parameters["BATCH_BUCKETS"].string_value == "2,8,16"


def test_engines_keep_at_most_all_cores_busy(tmp_path: Path) -> None:
    def shapes(text: str) -> list[tuple[int, int]]:
        return [(each.instances, each.threads) for each in engines(config(text), tmp_path, 4)]

    assert shapes(CONFIG) == [(4, 1), (2, 2), (1, 4), (2, 1), (1, 2), (1, 1)]
    assert shapes('backend: "python"') == [(4, 0), (2, 0), (1, 0)]


def test_lower_precisions_are_those_that_a_configuration_can_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kinds(text: str, *, lower: bool = True) -> set[tuple[str, str]]:
        return {(each.backend, each.precision) for each in engines(config(text), tmp_path, 2, lower=lower)}

    monkeypatch.setattr(compiler, "computes_bf16", lambda: True)
    support = DeviceSupport("", [ProviderState("TensorrtExecutionProvider", True)])
    monkeypatch.setattr(candidates, "device_support", lambda backends: {"onnxruntime": support})
    on_gpu = 'backend: "onnxruntime" instance_group { kind: KIND_GPU }'
    assert kinds(CONFIG) == {("onnxruntime", "")}
    assert kinds('backend: "openvino"') == {("openvino", ""), ("openvino", "bf16")}
    assert kinds(on_gpu) == {("onnxruntime", ""), ("onnxruntime", "bf16"), ("onnxruntime", "fp16")}
    assert kinds(on_gpu, lower=False) == {("onnxruntime", "")}

    (accelerator,) = (
        Candidate("onnxruntime", precision="fp16")
        .apply(config(on_gpu))
        .optimization.execution_accelerators.gpu_execution_accelerator
    )
    assert (accelerator.name, dict(accelerator.parameters)) == ("tensorrt", {"precision_mode": "FP16"})
    assert Candidate("openvino", precision="bf16").apply(config()).parameters["HINT_BF16"].string_value == "YES"


@pytest.mark.parametrize(
    ("own", "other", "difference"),
    [
        ([[1.0, 4.0]], [[1.1, 4.0]], 0.025),
        ([[1.0, 1.001]], [[1.001, 1.0]], math.inf),  # another class
        ([[[1.0, 1.001]]], [[[1.001, 1.0]]], 0.001 / 1.001),
        ([0.0, math.nan], [0.0, math.nan], 0.0),
        ([1.0], [math.nan], math.inf),
        ([0.0], [0.1], math.inf),
        ([3, 4], [3, 5], math.inf),
    ],
)
def test_answers_are_compared(own: list[float], other: list[float], difference: float) -> None:
    first, second = (Executions({}, 0, [{"OUTPUT": np.array(each)}]) for each in (own, other))
    assert second.difference(first) == pytest.approx(difference)


def test_executions_promise_the_rate_within_cores_and_target() -> None:
    def promised(times: dict[int, float], http_s: float = 0.0) -> dict[int, tuple[int, int]]:
        found = promises(Candidate("onnxruntime", 2, 1), times, items=1, cores=2, http_s=http_s, target_s=0.020)
        return {each.candidate.batch: (round(each.rate), each.load) for each in found}

    # Batches that cost less than their rows, and of those the ones that leave time for the batch before.
    assert promised({1: 0.002, 4: 0.004, 16: 0.014}) == {1: (952, 8), 4: (1951, 16)}
    # What is around an execution decides where it takes no time itself.
    assert promised({1: 0.00001, 64: 0.0001}, http_s=0.0001) == {1: (9524, 32), 64: (19394, 128)}
    assert promised({1: 0.025}) == {0: (0, 2)}
    # Rows that take as long in both: larger batches share what is around an execution among more.
    assert 64 in promised({1: 0.00001, 16: 0.000016, 64: 0.000064}, http_s=0.00003)


@pytest.mark.parametrize(
    ("rates", "is_chosen"), [((120, 124, 118) * 2, True), ((120, 90, 115) * 2, False), ((120, 124, 118), False)]
)
def test_model_is_unchanged_without_a_proven_improvement(
    tmp_path: Path, rates: tuple[float, ...], is_chosen: bool
) -> None:
    bench = Bench("m", tmp_path, config(), Objective(target_ms=10), lambda _: [], Encoding(), lambda _: None)
    other = Candidate(instances=2)
    for candidate, turns in ((AS_IT_IS, (100, 101, 99) * 2), (other, rates)):
        bench.turns[candidate, 1] = [level(1, rate, 5) for rate in turns]
        bench.trials[candidate] = Trial(candidate, raced=[pooled(bench.turns[candidate, 1])])

    assert bench.chosen().candidate == (other if is_chosen else AS_IT_IS)
    assert any(each.verdict == "better" for each in bench.gained(AS_IT_IS, other)) is is_chosen


class Queue(Bench):
    """Measures candidates as if each executed its requests one after the other, so many per second, and 2 ms on."""

    rates: Mapping[Candidate, float] = {}

    def server(self, candidate: Candidate) -> tuple[Any, Any]:
        return SimpleNamespace(memory_mb=lambda: 1.0), None

    def run(self, candidate: Candidate, concurrency: int, seconds: float) -> Level:
        latency_ms = 2 + 1e3 * concurrency / self.rates[candidate]
        return level(concurrency, 1e3 * concurrency / latency_ms, latency_ms)


def test_candidates_are_compared_at_the_load_at_which_each_meets_the_target(tmp_path: Path) -> None:
    bench = Queue("m", tmp_path, config(), Objective(target_ms=20), lambda _: [], Encoding(), lambda _: None)
    other = Candidate(instances=2)
    bench.rates = {AS_IT_IS: 700, other: 1500}
    # With 16 and 32 under way they take 25 and 23 ms.
    for candidate, loads in ((AS_IT_IS, (4, 8, 16)), (other, (8, 16, 32))):
        bench.trials[candidate] = Trial(candidate, [bench.run(candidate, load, 1.0) for load in loads])
    bench.race([AS_IT_IS, other], time.monotonic() + 60, 3)
    assert {candidate: {load for each, load in bench.turns if each == candidate} for candidate in bench.rates} == {
        AS_IT_IS: {9},
        other: {19},
    }
    # The model as it is was only asked one request after the other.
    bench.trials = {
        AS_IT_IS: Trial(AS_IT_IS, [bench.run(AS_IT_IS, 1, 1.0)]),
        other: Trial(other, [bench.run(other, load, 1.0) for load in (8, 16, 32)]),
    }
    bench.turns.clear()
    bench.race([AS_IT_IS, other], time.monotonic() + 60, 3)
    assert {load for each, load in bench.turns if each == AS_IT_IS} == {1, 4}
    # What turns out to be slower than it was is asked less, until it keeps the target.
    bench.rates[other] = 800
    bench.turns.clear()
    bench.race([AS_IT_IS, other], time.monotonic() + 60, 6)
    best = bench.trials[other].best(20)
    assert best is not None
    assert best.concurrency < 15


def test_a_sweep_also_looks_below_the_load_that_it_begins_with(tmp_path: Path) -> None:
    class Crowded(Queue):
        def run(self, candidate: Candidate, concurrency: int, seconds: float) -> Level:
            rate = 1000 - 2 * abs(concurrency - 32)
            return level(concurrency, rate, 1e3 * concurrency / rate)

    bench = Crowded("m", tmp_path, config(), Objective(target_ms=1000), lambda _: [], Encoding(), lambda _: None)
    swept = bench.sweep(Candidate(instances=2), 1.0, start=128)
    assert [each.concurrency for each in swept.levels] == [16, 32, 64, 128, 256]
    assert swept.fastest.concurrency == 32


def test_unmeasured_memory_is_printed_as_not_read() -> None:
    assert [memory_text(Trial(AS_IT_IS, memory_mb=size)) for size in (104.6, 0.0)] == ["105", "not read"]


def test_configuration_with_less_memory_need_not_be_faster(tmp_path: Path) -> None:
    objective = Objective(target_ms=10, memory_mb=500)
    bench = Bench("m", tmp_path, config(), objective, lambda _: [], Encoding(), lambda _: None)
    for candidate, rate, memory_mb in ((AS_IT_IS, 100, 900), (Candidate(instances=1), 50, 400)):
        bench.trials[candidate] = Trial(candidate, raced=[level(1, rate, 5)], memory_mb=memory_mb)
    assert bench.chosen().candidate == Candidate(instances=1)


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
def test_trials_are_ranked_by_the_objective(better: Trial, worse: Trial, objective: Objective) -> None:
    assert objective.value(better) > objective.value(worse)
