"""Checks of the counts in a configuration that become threads, processes, loops or memory.

Triton has no bounds for them: a wrong one keeps it busy, or takes all memory, without a word. What is only compared
(`max_batch_size`, `max_queue_size`, `priority_levels`, times) needs none.
Source: docs/spec/model-config.md section "In Trident".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from core.config.buckets import BATCH_BUCKETS, LENGTH_BUCKETS, bucket_spec
from core.config.problem import Problem
from core.config.schema import ModelConfig, ModelWarmup, datatype_of
from core.inference.tensors import element_count

MOST_INSTANCES = 1024
MOST_THREADS = 4096
MOST_WARMUP_REQUESTS = 65_536
MOST_BUCKETS = 4096
MOST_SLOTS = 65_536
MOST_BYTES = 4 << 30
"""Of what is made at the load: the tensors of one item, or one state."""

_THREAD_COUNTS = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "INTRA_OP_THREAD_COUNT",
    "INTER_OP_THREAD_COUNT",
    "INFERENCE_NUM_THREADS",
    "COMPILATION_NUM_THREADS",
    "NUM_STREAMS",
    "cpu_nthread",
    "TF_NUM_INTRA_THREADS",
    "TF_NUM_INTER_THREADS",
)
_REFERENCE_BYTES = 8  # of a string


def count_problems(config: ModelConfig) -> list[Problem]:
    """The counts of a normalised `config` that are too large to load it."""
    return [
        *_instance_problems(config),
        *_thread_problems(config),
        *_warmup_problems(config),
        *_slot_problems(config),
        *_state_problems(config),
    ]


def bucket_count_problems(config: ModelConfig) -> Iterator[Problem]:
    """Those of the buckets, each of which is executed once. All else of `config` is valid."""
    buckets = bucket_spec(config)
    if buckets is None:
        return
    count = max(1, len(buckets.batch_sizes)) * max(1, len(buckets.lengths))
    name = BATCH_BUCKETS if buckets.batch_sizes else LENGTH_BUCKETS
    if count > MOST_BUCKETS:
        yield _problem(f"parameters[{name}]", f"{count} buckets", MOST_BUCKETS, config, "choose fewer sizes")
    if buckets.batch_sizes and buckets.batch_sizes[-1] > MOST_WARMUP_REQUESTS:
        largest = f"a bucket of {buckets.batch_sizes[-1]} items"
        yield _problem(f"parameters[{BATCH_BUCKETS}]", largest, MOST_WARMUP_REQUESTS, config)
    size = 0
    for length in buckets.lengths or (1,):
        for entry in config.input:
            dims = [length if dim == -1 else dim for dim in entry.dims]
            size += max(1, len(buckets.batch_sizes)) * _bytes(entry.data_type, dims)
    if size > MOST_BYTES:
        yield _problem(f"parameters[{name}]", f"{size} bytes of samples for its buckets", MOST_BYTES, config)


def _instance_problems(config: ModelConfig) -> Iterator[Problem]:
    total = 0
    for index, group in enumerate(config.instance_group):
        total += 0 if group.passive else group.count * max(1, len(group.gpus))
        if total > MOST_INSTANCES:
            hint = "an instance is a thread, and of a Python model a process"
            yield _problem(f"instance_group[{index}].count", f"{total} instances", MOST_INSTANCES, config, hint)
            return


def _thread_problems(config: ModelConfig) -> Iterator[Problem]:
    for name in _THREAD_COUNTS:
        text = config.parameters[name].string_value.strip() if name in config.parameters else ""
        if text.isdecimal() and (len(text) > len(str(MOST_THREADS)) or int(text) > MOST_THREADS):
            shown = text if len(text) < 24 else f"{text[:20]}…"
            yield _problem(f"parameters[{name}]", f"{shown} threads", MOST_THREADS, config)


def _warmup_problems(config: ModelConfig) -> Iterator[Problem]:
    for index, sample in enumerate(config.model_warmup):
        path, what = f"model_warmup[{index}]", f"in the warmup sample '{sample.name}'"
        if sample.batch_size > MOST_WARMUP_REQUESTS:
            text = f"a batch of {sample.batch_size} requests {what}"
            yield _problem(f"{path}.batch_size", text, MOST_WARMUP_REQUESTS, config)
        if sample.count > MOST_WARMUP_REQUESTS:
            text = f"{sample.count} executions {what}"
            yield _problem(f"{path}.count", text, MOST_WARMUP_REQUESTS, config)
        size = sum(_input_bytes(entry) for entry in sample.inputs.values())
        if size > MOST_BYTES:
            yield _problem(
                f"{path}.inputs", f"{size} bytes for one item {what}", MOST_BYTES, config, "look at its dims"
            )


def _input_bytes(entry: ModelWarmup.Input) -> int:
    return _bytes(entry.data_type, entry.dims)


def _slot_problems(config: ModelConfig) -> Iterator[Problem]:
    direct = config.sequence_batching.direct
    if direct.minimum_slot_utilization and direct.max_queue_delay_microseconds and config.max_batch_size > MOST_SLOTS:
        path = "sequence_batching.direct.minimum_slot_utilization"
        yield _problem(
            path, f"a utilization of {config.max_batch_size} slots", MOST_SLOTS, config, "lower max_batch_size"
        )


def _state_problems(config: ModelConfig) -> Iterator[Problem]:
    for index, state in enumerate(config.sequence_batching.state):
        for dims in (state.dims, *(initial.dims for initial in state.initial_state)):
            size = _bytes(state.data_type, dims)
            if size > MOST_BYTES:
                path = f"sequence_batching.state[{index}].dims"
                yield _problem(path, f"{size} bytes in the state '{state.input_name}'", MOST_BYTES, config)
                break


def _bytes(data_type: int, dims: Iterable[int]) -> int:
    """The size of a tensor with 1 for each variable dimension; 0 for one of an unknown datatype."""
    datatype = datatype_of(data_type)
    if datatype is None:
        return 0
    return element_count(max(dim, 1) for dim in dims) * (datatype.size or _REFERENCE_BYTES)


def _problem(path: str, what: str, most: int, config: ModelConfig, hint: str = "") -> Problem:
    return Problem(path, f"'{path}' of model '{config.name}' means {what}, more than the maximum of {most}", hint)
