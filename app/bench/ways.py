"""Ways to run a model on CPUs, and what a few executions without a server promise of each."""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product, repeat
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from trident.app.bench.requests import Inputs
from trident.core.backends.backend import BackendInstance, LoadContext
from trident.core.backends.registry import BackendRegistry
from trident.core.config.batching import TARGET_P99
from trident.core.config.placement import placements
from trident.core.config.request_check import RequestValidator
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import ModelConfig
from trident.core.cuda import gpu_ids
from trident.core.errors import BackendFailed, ServerError
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import Array
from trident.core.scheduling.instance import run_once

ONNX, _OPENVINO = "onnxruntime", "openvino"
THREADS = {ONNX: "intra_op_thread_count", _OPENVINO: "INFERENCE_NUM_THREADS"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run the model. 0 and "" leave a setting as it is. `batch` is the largest that the batcher makes of
    requests; 1 is none."""

    backend: str = ""
    instances: int = 0
    threads: int = 0
    batch: int = 0
    delay_us: int = 0

    @property
    def text(self) -> str:
        parts = [self.backend] if self.backend else []
        parts += [f"{self.instances} instances"] * bool(self.instances) + [f"{self.threads} threads"] * bool(
            self.threads
        )
        parts += [f"batches of {self.batch}"] * (self.batch > 0)
        parts += [f"delay {self.delay_us} us"] * bool(self.delay_us)
        return ", ".join(parts) or "as it is"

    @property
    def cores(self) -> int:
        """How many it can keep busy."""
        return max(1, self.instances) * max(1, self.threads)

    def apply(self, config: ModelConfig) -> ModelConfig:
        """The configuration with these settings."""
        made = ModelConfig()
        made.CopyFrom(config)
        if self.backend and self.backend != config.backend:
            if self.backend == _OPENVINO and not made.default_model_filename:
                made.default_model_filename = "model.onnx"
            made.platform, made.backend = "", self.backend
        if self.instances:
            groups = made.instance_group or [made.instance_group.add(kind=ModelConfig().instance_group.add().KIND_CPU)]
            groups[0].count = self.instances
        if self.threads:
            for name in THREADS.values():
                made.parameters.pop(name, None)
            backend = made.backend or ONNX
            # OpenVINO's are those of all instances together.
            threads = self.cores if backend == _OPENVINO else self.threads
            made.parameters[THREADS[backend]].string_value = str(threads)
        if self.batch:
            # Never smaller than it was, because that would refuse requests that the model accepts now.
            made.max_batch_size = max(made.max_batch_size, self.batch)
            made.parameters.pop(TARGET_P99, None)
            batching = made.dynamic_batching
            batching.ClearField("preferred_batch_size")
            batching.ClearField("max_queue_delay_microseconds")
            if self.batch == 1 and not batching.ListFields():
                made.ClearField("dynamic_batching")
                return made
            batching.SetInParent()
            if self.batch < made.max_batch_size:
                batching.preferred_batch_size.append(self.batch)
            if self.delay_us:
                batching.max_queue_delay_microseconds = self.delay_us
        return made


def engines(config: ModelConfig, folder: Path, cores: int) -> list[Candidate]:
    """Backend, instances and threads, those first that use most cores."""
    own = config.backend or (ONNX if config.platform in ("", "onnxruntime_onnx") else "")
    counts = sorted({*(1 << bit for bit in range(cores.bit_length()) if 1 << bit <= cores), cores}, reverse=True)
    if own not in THREADS:
        return [Candidate(own, instances) for instances in counts]
    backends = [own]
    if own == ONNX and importlib.util.find_spec(_OPENVINO) and any(folder.glob("*/model.onnx")):
        backends.append(_OPENVINO)
    shapes = [(count, threads) for count, threads in product(counts, counts) if count * threads <= cores]
    shapes.sort(key=lambda shape: -shape[0] * shape[1])
    return [Candidate(backend, *shape) for shape, backend in product(shapes, backends)]


def may_batch(config: ModelConfig) -> bool:
    return config.max_batch_size > 0 and not config.HasField("sequence_batching")


# --- what executions promise

# Requests in an execution.
SIZES = (1, 4, 16, 64)
# The share of the target that an execution may take: a request may also wait for the one before.
_SHARE = 0.6
# A batch that is expected to take so many times that is not run.
_HOPELESS = 2.0
# Executions of a size: at least so many, unless they take too long, and as many as fit into the first time.
_LEAST, _LONG_ENOUGH_S, _TOO_LONG_S = 4, 0.03, 1.0
# What else the machine does makes executions longer, never shorter.
_QUANTILE = 0.25
# With this many requests under way, or twice as many as its instances execute at once, a server is never idle.
_BUSY_LOAD = 32
# What an execution takes of a core around it, as to wake its thread.
AROUND_S = 1e-4


@dataclass(frozen=True, slots=True)
class Promise:
    """The requests/s of a candidate, and how many under way give them. One that takes `shortest_s` may miss the
    target, and then promises nothing."""

    candidate: Candidate
    rate: float
    load: int
    shortest_s: float


def promises(
    engine: Candidate, times: Mapping[int, float], *, items: int, cores: int, http_s: float, target_s: float
) -> list[Promise]:
    """The engine without batches, and with the best ones, from what `execution_times` gave.

    The one that promises more comes first. `items` are those of a request, and `http_s` is what one takes of a core
    beside its execution.
    """
    instances, threads = max(1, engine.instances), max(1, engine.threads)

    def promise(size: int, batch: int) -> Promise:
        each_s = times[size] / size
        rate = min(instances / each_s, cores / (http_s + threads * each_s + AROUND_S / size))
        if times[size] > target_s:
            rate = 0.0
        load = max(instances * size, min(rate * _SHARE * target_s, max(_BUSY_LOAD, 2 * instances * size)))
        return Promise(replace(engine, batch=batch), rate, 1 << int(math.log2(load)), times[size])

    found = [promise(1, 1 if len(times) > 1 else 0)]
    batches = {size: taken / size for size, taken in times.items() if size > 1 and taken <= _SHARE * target_s}
    if batches:
        best = min(batches, key=batches.__getitem__)
        found.append(promise(best, best * items))
    return sorted(found, key=lambda each: -each.rate)


def execution_times(
    folder: Path, config: ModelConfig, version: int, inputs: Sequence[Inputs], target_s: float
) -> dict[int, float]:
    """Seconds of an execution by the number of its requests: a few, of all instances at the same time, in a process of
    their own.

    `config` is complete. Batches that take much more than the target allows are left out. Raises ServerError.
    """
    context = multiprocessing.get_context("forkserver")
    rows = [[(each.name, each.datatype.name, each.array) for each in tensors] for tensors in inputs]
    ours, theirs = context.Pipe(duplex=False)
    given = (theirs, folder, config.SerializeToString(), version, rows, _SHARE * target_s)
    process = context.Process(target=_report, args=given, daemon=True)
    process.start()
    theirs.close()
    try:
        found: dict[int, float] | str = ours.recv()
    except EOFError:
        found = "the process that executed it ended"
    finally:
        process.kill()
        process.join()
    if isinstance(found, str):
        raise BackendFailed(found)
    return found


_Rows = Sequence[Sequence[tuple[str, str, Array]]]


def _report(pipe: Connection, folder: Path, config: bytes, version: int, rows: _Rows, longest_s: float) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    try:
        pipe.send(_measured(folder, ModelConfig.FromString(config), version, rows, longest_s))
    except ServerError as error:
        pipe.send(error.message)


def _measured(folder: Path, config: ModelConfig, version: int, rows: _Rows, longest_s: float) -> dict[int, float]:
    spec = resolve_model_spec(config, version, {})
    placed = placements(config)
    backend = BackendRegistry({"": {}}, gpu_ids=gpu_ids()).find(config)
    model = backend.load(LoadContext(folder / str(version), config, spec, placed))
    instances = [model.instance(each) for each in placed]
    check = RequestValidator(spec).check
    tensors = [[InputTensor(name, datatype, array.shape, array) for name, datatype, array in row] for row in rows]
    items = rows[0][0][2].shape[0] if may_batch(config) else 1

    def several(instance: BackendInstance, requests: Sequence[InferenceRequest]) -> list[float]:
        taken: list[float] = []
        begun = ended = time.perf_counter()
        while ended < begun + _LONG_ENOUGH_S or (len(taken) < _LEAST and ended < begun + _TOO_LONG_S):
            at = time.perf_counter()
            run_once(instance, requests, check)
            ended = time.perf_counter()
            taken.append(ended - at)
        return taken[1:] or taken  # the first may have to allocate

    found: dict[int, float] = {}
    with ThreadPoolExecutor(len(instances)) as pool:
        for size in SIZES:
            expected_s = size * min((taken_s / each for each, taken_s in found.items()), default=0.0)
            if expected_s > _HOPELESS * longest_s or (size > 1 and size * items > config.max_batch_size):
                break
            requests = [InferenceRequest(spec.name, tensors[at % len(tensors)]) for at in range(size)]
            taken = [each for part in pool.map(several, instances, repeat(requests)) for each in part]
            found[size] = float(np.quantile(taken, _QUANTILE))
    return found
