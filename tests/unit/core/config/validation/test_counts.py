"""Counts of a configuration near the limits of their types: a model loads, or its error names the field.

All are loaded in one process, whose memory is limited: what becomes a list or a loop does not come to an end there.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.project import ROOT
from tests.unit.onnx_models import identity, write_version

LIMIT_S = 300
MEMORY = 6 << 30
M31, M32, M64, I64 = 2**31 - 1, 2**32 - 1, 2**64 - 1, 2**63 - 1
ONE = "instance_group { kind: KIND_CPU count: 1 }"


def config(text: str, batch: int = 64) -> str:
    return f"""
backend: "onnxruntime"
max_batch_size: {batch}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
{text}
"""


def parameter(key: str, value: object) -> str:
    return f'{ONE} parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def warmup(batch: int = 1, count: int = 1, dims: str = "4", content: str = "zero_data") -> str:
    given = f'{{ key: "INPUT0" value {{ data_type: TYPE_FP32 dims: [ {dims} ] {content}: true }} }}'
    return f'{ONE} model_warmup {{ name: "w" batch_size: {batch} count: {count} inputs {given} }}'


def state(dims: str) -> str:
    state = f'{{ input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ {dims} ] }}'
    return f"{ONE} sequence_batching {{ state {state} }}"


SIZES = ",".join(map(str, range(1, 66)))
READY: dict[str, str] = {
    "priorities": config(
        f"{ONE} dynamic_batching {{ priority_levels: {M64} default_priority_level: {M64} priority_queue_policy {{ "
        f"key: {M64} value {{ max_queue_size: {M32} default_timeout_microseconds: {M64} }} }} }}"
    ),
    "batch": config(f"{ONE} dynamic_batching {{ max_queue_delay_microseconds: {M64} }}", M31),
    "target": config(f"{parameter('TARGET_P99_MS', 20)} dynamic_batching {{ }}", M31),
    "sequences": config(
        f"{ONE} sequence_batching {{ max_sequence_idle_microseconds: {M64} oldest {{ "
        f"max_candidate_sequences: {M31} max_queue_delay_microseconds: {M64} }} }}",
        M31,
    ),
    "slots": config(f"{ONE} sequence_batching {{ direct {{ }} }}", M31),
    "resources": config(
        "instance_group { kind: KIND_CPU count: 2 rate_limiter { "
        f'priority: {M32} resources {{ name: "R" count: {M32} }} }} }}'
    ),
    "versions": config(f"{ONE} version_policy {{ latest {{ num_versions: {M32} }} }}"),
    "specific": config(f"{ONE} version_policy {{ specific {{ versions: [ 1, {I64} ] }} }}"),
    "buffers": config(f"{ONE} optimization {{ gather_kernel_buffer_threshold: {M31} graph {{ level: {M31} }} }}"),
}
# And the field that the error names.
REFUSED: dict[str, tuple[str, str]] = {
    "instances": (config(f"instance_group {{ kind: KIND_CPU count: {M31} }}"), "instance_group[0].count"),
    "groups": (config("instance_group { kind: KIND_CPU count: 400 } " * 3), "instance_group[2].count"),
    "threads": (config(parameter("intra_op_thread_count", M31)), "parameters[intra_op_thread_count]"),
    "digits": (config(parameter("inter_op_thread_count", "9" * 5000)), "parameters[inter_op_thread_count]"),
    "warm_batch": (config(warmup(batch=M32), M31), "model_warmup[0].batch_size"),
    "warm_count": (config(warmup(count=M32)), "model_warmup[0].count"),
    "warm_zeros": (config(warmup(dims=f"{I64}")), "model_warmup[0].inputs"),
    "warm_random": (config(warmup(dims="100000, 1000000", content="random_data")), "model_warmup[0].inputs"),
    "utilized": (
        config(
            f"{ONE} sequence_batching {{ direct {{ "
            f"minimum_slot_utilization: 0.1 max_queue_delay_microseconds: {M64} }} }}",
            M31,
        ),
        "sequence_batching.direct.minimum_slot_utilization",
    ),
    "state": (config(state("10000000000")), "sequence_batching.state[0].dims"),
    "state_overflow": (config(state(f"{I64}, {I64}")), "sequence_batching.state[0].dims"),
    "batch_bucket": (config(parameter("BATCH_BUCKETS", f"1,{M31}"), M31), "parameters[BATCH_BUCKETS]"),
    "length_bucket": (config(parameter("LENGTH_BUCKETS", M31)), "parameters[LENGTH_BUCKETS]"),
    "buckets": (
        config(f"{parameter('BATCH_BUCKETS', SIZES)} {parameter('LENGTH_BUCKETS', SIZES)}".replace(ONE, ""), 65),
        "parameters[BATCH_BUCKETS]",
    ),
}
LOAD = """
import json, os, resource, sys
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:2])  # stacks of threads count as memory
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
from trident.core.engine.in_process import make_engine
from trident.core.lifecycle.options import EngineOptions
engine = make_engine(EngineOptions(repositories=(sys.argv[1],), gpu_metrics=False))
engine.start()
engine.wait_loaded(3600)
index = engine.repository_index(False)
print(json.dumps({entry.name: [entry.state.value, entry.reason] for entry in index}))
sys.stdout.flush()
os._exit(0)  # threads of the models still wait
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """State and reason of each model after the load."""
    repository = tmp_path_factory.mktemp("counts")
    for name, text in [*READY.items(), *((name, text) for name, (text, _) in REFUSED.items())]:
        write_version(identity(), repository, name, text)
    command = [sys.executable, "-c", LOAD, str(repository), str(MEMORY)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", READY)
def test_a_large_count_that_is_only_compared_costs_nothing(index: dict[str, list[str]], name: str) -> None:
    assert index[name] == ["READY", ""]


@pytest.mark.parametrize("name", REFUSED)
def test_a_count_that_would_be_a_loop_or_memory_is_refused(index: dict[str, list[str]], name: str) -> None:
    state, reason = index[name]
    assert state == "UNAVAILABLE"
    assert reason.startswith(f"Invalid argument: '{REFUSED[name][1]}' of model '{name}' means ")
    assert ", more than the maximum of " in reason
