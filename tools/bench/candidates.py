"""Configurations to try for a model, and the rate that a few executions without a server predict for each.

Executions also show whether the answers of a way are near those of the model as it is: another engine, a lower
precision or padding may change them.
"""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby, product, repeat
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from trident.core.backends.backend import BackendInstance, LoadContext
from trident.core.backends.onnxruntime.providers import TENSORRT
from trident.core.backends.registry import BackendRegistry, DeviceSupport, device_support
from trident.core.config.placement import placements
from trident.core.config.platforms import pads_batches
from trident.core.config.request_check import RequestValidator
from trident.core.config.resolve import BATCH_BUCKETS, LENGTH_BUCKETS, TARGET_P99, parameter, resolve_model_spec
from trident.core.config.schema import ModelConfig
from trident.core.cuda import gpu_ids
from trident.core.errors import BackendFailed, ServerError
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import Array
from trident.core.scheduling.run_once import run_once
from trident.tools.bench.requests import Inputs

ONNX, _OPENVINO = "onnxruntime", "openvino"
THREADS = {ONNX: "intra_op_thread_count", _OPENVINO: "INFERENCE_NUM_THREADS"}
_TENSORRT, _BF16 = "tensorrt", "HINT_BF16"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run the model. 0, "" and () leave a setting as it is. `batch` is the largest that the batcher makes of
    requests; 1 is none. `pads_batches` to powers of two, and `lengths` are those to which requests are padded."""

    backend: str = ""
    instances: int = 0
    threads: int = 0
    batch: int = 0
    delay_us: int = 0
    precision: str = ""
    pads_batches: bool = False
    lengths: tuple[int, ...] = ()

    @property
    def padding(self) -> str:
        parts = ["batches to powers of two"] * self.pads_batches
        parts += [f"lengths to {', '.join(map(str, self.lengths))}"] * bool(self.lengths)
        return " and ".join(parts)

    @property
    def answers(self) -> tuple[object, ...]:
        """The settings that may change the answers."""
        return self.backend, self.precision, self.pads_batches, self.lengths

    @property
    def text(self) -> str:
        parts = [f"{self.backend} {self.precision}".strip()] if self.backend else []
        for count, what in ((self.instances, "instance"), (self.threads, "thread")):
            parts += [f"{count} {what}{'s' * (count > 1)}"] * (count > 0)
        parts += [f"batches of {self.batch}"] * (self.batch > 0)
        parts += [f"delay {self.delay_us} us"] * bool(self.delay_us)
        parts += [f"padding {self.padding}"] * bool(self.padding)
        return ", ".join(parts) or "as it is"

    @property
    def cores(self) -> int:
        """Number of cores that it can keep busy."""
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
        if self.precision:
            _set_precision(made, self.precision)
        if self.batch:
            self._batch(made)
        if self.pads_batches:
            sizes = [*(1 << bit for bit in range((made.max_batch_size - 1).bit_length())), made.max_batch_size]
            made.parameters[BATCH_BUCKETS].string_value = ",".join(map(str, sizes))
        if self.lengths:
            made.parameters[LENGTH_BUCKETS].string_value = ",".join(map(str, self.lengths))
        return made

    def _batch(self, made: ModelConfig) -> None:
        # Never smaller than it was, because that would refuse requests that the model accepts now.
        if self.batch > made.max_batch_size:
            made.max_batch_size = self.batch
            if padded := parameter(made, BATCH_BUCKETS):
                made.parameters[BATCH_BUCKETS].string_value = f"{padded},{self.batch}"
        made.parameters.pop(TARGET_P99, None)
        batching = made.dynamic_batching
        batching.ClearField("preferred_batch_size")
        batching.ClearField("max_queue_delay_microseconds")
        if self.batch == 1 and not batching.ListFields():
            made.ClearField("dynamic_batching")
            return
        batching.SetInParent()
        if self.batch < made.max_batch_size:
            batching.preferred_batch_size.append(self.batch)
        if self.delay_us:
            batching.max_queue_delay_microseconds = self.delay_us


def _set_precision(config: ModelConfig, precision: str) -> None:
    if config.backend == _OPENVINO:
        config.parameters[_BF16].string_value = "YES"
        return
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    found = next((each for each in accelerators if each.name == _TENSORRT), None)
    (found or accelerators.add(name=_TENSORRT)).parameters["precision_mode"] = precision.upper()


def engines(config: ModelConfig, folder: Path, cores: int, *, lower: bool = False) -> list[Candidate]:
    """Backend, instances and threads, those first that use most cores; with `lower` also in a lower precision.

    The model's own backend is the first.
    """
    own = config.backend or (ONNX if config.platform in ("", "onnxruntime_onnx") else "")
    counts = sorted({*(1 << bit for bit in range(cores.bit_length()) if 1 << bit <= cores), cores}, reverse=True)
    if own not in THREADS:
        return [Candidate(own, instances) for instances in counts]
    on_gpu = any(group.kind == group.KIND_GPU for group in config.instance_group)
    kinds = [(own, "")]
    if own == ONNX and not on_gpu and importlib.util.find_spec(_OPENVINO) and any(folder.glob("*/model.onnx")):
        kinds.append((_OPENVINO, ""))
    if lower:
        kinds += [(backend, precision) for backend, _ in kinds for precision in _lower(backend, config, on_gpu)]
    threads = (0,) if on_gpu else counts
    shapes = [(count, each) for count, each in product(counts, threads) if count * each <= cores]
    shapes.sort(key=lambda shape: -shape[0] * shape[1])
    return [
        Candidate(backend, instances, each, precision=precision)
        for (instances, each), (backend, precision) in product(shapes, kinds)
    ]


def _lower(backend: str, config: ModelConfig, on_gpu: bool) -> Sequence[str]:
    """The precisions below the model's own that a configuration can ask of a backend here."""
    if backend == _OPENVINO and _BF16 not in config.parameters:
        from trident.core.backends.openvino.compiler import computes_bf16

        return ("bf16",) if computes_bf16() else ()
    if backend == ONNX and on_gpu:
        support = device_support([ONNX])[ONNX]
        providers = support.providers if isinstance(support, DeviceSupport) else ()
        works = any(each.name == TENSORRT and each.installed and not each.problem for each in providers)
        return ("bf16", "fp16") if works else ()
    return ()


def may_batch(config: ModelConfig) -> bool:
    return config.max_batch_size > 0 and not config.HasField("sequence_batching")


def paddings(way: Candidate, config: ModelConfig, inputs: Sequence[Inputs], longest: int) -> list[Candidate]:
    """The way with padded batches, and with padded lengths up to `longest`, if that is given and the lengths differ."""
    made = way.apply(config)
    if not pads_batches(made):
        return []
    axes = {each.name: list(each.dims).index(-1) for each in made.input if -1 in each.dims}
    sent = {
        each.array.shape[made.max_batch_size > 0 :][axes[each.name]]
        for one in inputs
        for each in one
        if each.name in axes
    }
    lengths: tuple[int, ...] = ()
    if longest and len(sent) > 1 and not parameter(made, LENGTH_BUCKETS):
        longest = max(longest, *sent)
        powers = (1 << bit for bit in range((min(sent) - 1).bit_length(), longest.bit_length()))
        lengths = (*(size for size in powers if size < longest), longest)
    batches = way.batch > 1 and not parameter(made, BATCH_BUCKETS)
    return [
        replace(way, lengths=padded, pads_batches=rows)
        for padded, rows in product((lengths, ()) if lengths else ((),), (False, True) if batches else (False,))
        if padded or rows
    ]


# --- predictions from executions

# Requests in an execution.
SIZES = (1, 4, 16, 64)
# The share of the target that an execution may take: a request may also wait for the whole one before.
_SHARE = 0.45
# A batch that is expected to take so many times that is not run.
_HOPELESS = 2.0
# Executions of a size: at least so many, unless they take too long, and as many as fit into the first time.
_LEAST, _LONG_ENOUGH_S, _TOO_LONG_S = 4, 0.03, 1.0
# Other work of the machine makes executions longer, never shorter.
_QUANTILE = 0.25
# Batches of mixed sizes in a turn, and requests whose answers are compared.
_MIXED, _COMPARED = 16, 16
# Promises that are so near to each other are taken for equal.
NEAR = 1.05
# With this many requests under way, or twice as many as its instances execute at once, a server is never idle.
_BUSY_LOAD = 32
# Time of a core around an execution, as to wake its thread.
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
    """The engine without batches, and with the best ones, from what `execute` gave.

    The one that promises more comes first; batches, if both promise about as much: what a request takes around its
    execution they share. `items` are those of a request, and `http_s` is what one takes of a core beside its execution.
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
    batches = [
        promise(size, size * items) for size, taken in sorted(times.items()) if size > 1 and taken <= _SHARE * target_s
    ]
    if batches:
        most = max(each.rate for each in batches)
        # The smallest of those that promise about as much: its requests wait least.
        found.append(next(each for each in batches if NEAR * each.rate >= most))
        found.sort(key=lambda each: each.rate * (NEAR if each.candidate.batch > 1 else 1), reverse=True)
    return found


@dataclass(frozen=True, slots=True)
class Executions:
    """`times` are seconds of an execution by the number of its requests. `mixed_s` are those of batches of mixed sizes,
    one after the other, or 0. `answers` are those to some requests, by the names of the outputs."""

    times: Mapping[int, float]
    mixed_s: float
    answers: Sequence[Mapping[str, Array]]

    def is_faster(self, other: Executions, factor: float) -> bool:
        if other.mixed_s:
            return factor * self.mixed_s < other.mixed_s
        return any(factor * taken < other.times.get(size, math.inf) for size, taken in self.times.items())

    def difference(self, own: Executions) -> float:
        """The largest difference from the model's own answers, as a share of the largest number of the output.

        Infinite where texts or whole numbers differ, or where another number of an item is the largest: another class.
        """
        pairs = zip(own.answers, self.answers, strict=False)
        return max((_difference(first[name], second[name]) for first, second in pairs for name in first), default=0.0)


def most_difference(way: Candidate) -> float:
    """Allowed difference of a candidate's answers from the model's own. Lower precisions keep two to three digits."""
    return 0.02 if way.precision else 0.001


def _difference(own: Array, other: Array) -> float:
    is_float = own.dtype.kind == "f"
    if np.array_equal(own, other, equal_nan=is_float):
        return 0.0
    if own.shape != other.shape or not is_float:
        return math.inf
    if own.ndim in (1, 2) and own.shape[-1] > 1 and not np.array_equal(own.argmax(-1), other.argmax(-1)):
        return math.inf
    distance = float(np.abs(own.astype(float) - other.astype(float)).max())
    largest = float(np.abs(own.astype(float)).max())
    return distance / largest if math.isfinite(distance) and largest else math.inf


def execute(
    folder: Path,
    config: ModelConfig,
    version: int,
    inputs: Sequence[Inputs],
    target_s: float,
    *,
    most: int = 0,
    compared: bool = True,
) -> Executions:
    """Execute a few batches on all instances at the same time, in a process of their own.

    `config` is complete. Batches that take much more than the target allows are left out. With `most` the batches are
    also of mixed sizes, up to so many requests. Without `compared` there are no answers. Raises ServerError.
    """
    context = multiprocessing.get_context("forkserver")
    rows = [[(each.name, each.datatype.name, each.array) for each in tensors] for tensors in inputs]
    ours, theirs = context.Pipe(duplex=False)
    given = (theirs, folder, config.SerializeToString(), version, rows, _SHARE * target_s, most, _COMPARED * compared)
    process = context.Process(target=_report, args=given, daemon=True)
    process.start()
    theirs.close()
    try:
        found: Executions | str = ours.recv()
    except EOFError:
        found = "the process that executed it ended"
    finally:
        process.kill()
        process.join()
    if isinstance(found, str):
        raise BackendFailed(found)
    return found


_Rows = Sequence[Sequence[tuple[str, str, Array]]]


def _report(
    pipe: Connection, folder: Path, config: bytes, version: int, rows: _Rows, longest_s: float, most: int, compared: int
) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    try:
        pipe.send(_measured(folder, ModelConfig.FromString(config), version, rows, longest_s, most, compared))
    except ServerError as error:
        pipe.send(error.message)


def _measured(
    folder: Path, config: ModelConfig, version: int, rows: _Rows, longest_s: float, most: int, compared: int
) -> Executions:
    spec = resolve_model_spec(config, version, {})
    placed = placements(config)
    backend = BackendRegistry({"": {}}, gpu_ids=gpu_ids()).find(config)
    model = backend.load(LoadContext(folder / str(version), config, spec, placed))
    instances = [model.instance(each) for each in placed]
    check = RequestValidator(spec).check
    tensors = [[InputTensor(name, datatype, array.shape, array) for name, datatype, array in row] for row in rows]
    items = rows[0][0][2].shape[0] if may_batch(config) else 1

    def several(instance: BackendInstance, batches: Sequence[Sequence[InferenceRequest]]) -> list[float]:
        """Seconds of all batches, several times."""
        taken: list[float] = []
        begun = ended = time.perf_counter()
        while ended < begun + _LONG_ENOUGH_S or (len(taken) < _LEAST and ended < begun + _TOO_LONG_S):
            at = time.perf_counter()
            for requests in batches:
                run_once(instance, requests, check)
            ended = time.perf_counter()
            taken.append(ended - at)
        return taken[1:] or taken  # the first may have to allocate

    def requests_of(size: int, first: int = 0) -> list[InferenceRequest]:
        return [InferenceRequest(spec.name, tensors[at % len(tensors)]) for at in range(first, first + size)]

    def batches_of(requests: Sequence[InferenceRequest]) -> list[list[InferenceRequest]]:
        """As the batcher does: only requests of one shape go together."""
        return [list(group) for _, group in groupby(requests, key=lambda request: check(request)[1])]

    def mixed() -> Iterator[list[InferenceRequest]]:
        random = np.random.default_rng(0)
        for size in random.integers(1, most, _MIXED, endpoint=True):
            yield from batches_of(requests_of(size, int(random.integers(len(tensors)))))

    times: dict[int, float] = {}
    with ThreadPoolExecutor(len(instances)) as pool:

        def seconds(batches: Sequence[Sequence[InferenceRequest]]) -> float:
            taken = [each for part in pool.map(several, instances, repeat(batches)) for each in part]
            return float(np.quantile(taken, _QUANTILE))

        for size in SIZES:
            expected_s = size * min((taken_s / each for each, taken_s in times.items()), default=0.0)
            if expected_s > _HOPELESS * longest_s or (size > 1 and size * items > config.max_batch_size):
                break
            times[size] = seconds(batches_of(requests_of(size)))
        mixed_s = seconds(list(mixed())) if most else 0.0
    answers: list[dict[str, Array]] = []
    begun = time.perf_counter()
    while len(answers) < min(len(tensors), compared) and time.perf_counter() < begun + _TOO_LONG_S:
        (outputs,) = run_once(instances[0], requests_of(1, len(answers)), check)
        answers.append({each.name: np.array(each.array) for each in outputs})
    return Executions(times, mixed_s, answers)
