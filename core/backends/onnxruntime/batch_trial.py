"""Tries sessions in batches: whether their rows are independent, and whether outputs grow that are declared otherwise.

Some exporters declare the outputs as they are for one row: LightGBM's label is [1]. ONNX Runtime does not enforce it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from trident.core.backends.onnxruntime.graph import without_weights
from trident.core.backends.onnxruntime.session import (
    FAILURES,
    SessionSettings,
    check_device,
    failure_of,
    made_up,
    run_options,
)
from trident.core.backends.tensors import SteadySizes
from trident.core.config.placement import Placement
from trident.core.config.problem import BatchingFault, ModelSignature, TensorSignature
from trident.core.config.spec import ModelSpec
from trident.core.errors import OutOfMemory
from trident.core.inference.tensors import BY_NAME, Array, Shape, shape_text

_log = logging.getLogger("trident.backends")

_SECONDS_AT_MOST = 10.0


# What the results of a row may differ by in batches of different sizes, as a part of the largest number in the row.
_MARGIN = 2e-3
# Where a number lies between two integers, the last bit decides which it becomes, and layers follow that magnify it.
_MARGIN_OF_QUANTIZED = 3e-2
# Scales that depend on the batch always show.
_MARGIN_OF_DYNAMIC = 1e-5


def rounding_margin(path: Path) -> float:
    """Return how far results may be apart that differ by rounding only, by the operators in the file at `path`."""
    nodes = without_weights(path)
    if b"DynamicQuantize" in nodes:
        return _MARGIN_OF_DYNAMIC
    return _MARGIN_OF_QUANTIZED if b"QuantizeLinear" in nodes or b"QLinear" in nodes else _MARGIN


def tried_signature(
    session: Any,
    signature: ModelSignature,
    model_name: str,
    rows: int = 3,
    margin: float = _MARGIN,
    seconds: float = _SECONDS_AT_MOST,
) -> ModelSignature:
    """`signature` with what a trial in batches of up to `rows` rows shows, if its inputs can be batched at all.

    It ends after `seconds`. `margin` is the result of `rounding_margin`. What shows is a fault, or -1 as the first
    dimension of all outputs. Without a result, which the log says, the declared dimensions decide.
    """
    inputs, outputs = signature.inputs, signature.outputs
    if not inputs or not all(tensor.shape[:1] == (-1,) for tensor in inputs) or not all(each.shape for each in outputs):
        return signature
    if any(tensor.datatype in ("", "BF16") for tensor in (*inputs, *outputs)):
        return signature
    names = [tensor.name for tensor in outputs]
    options = run_options(SessionSettings())
    end = monotonic() + seconds

    def run(feed: Mapping[str, Array]) -> Sequence[Array]:
        if monotonic() > end:
            raise TrialOver
        try:
            results: Sequence[Array] = session.run(names, dict(feed), options)
        except FAILURES:
            if options.terminate:
                raise TrialOver from None
            raise
        return results

    with time_limit(options, seconds):
        fault, failure = _try_batches(run, inputs, names, rows, margin)
    if failure:
        _log.info(
            "model '%s' could not be tried in batches, because %s: the dimensions that its graph declares decide "
            "whether it is batched",
            model_name,
            failure,
        )
        return signature
    if fault is not None:
        return replace(signature, batching_fault=fault)
    return replace(signature, outputs=tuple(replace(each, shape=(-1, *each.shape[1:])) for each in outputs))


@contextmanager
def time_limit(options: Any, seconds: float) -> Iterator[None]:
    """Runs with `options` fail if they are not over after `seconds`."""
    timer = Timer(seconds, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# A first dimension that is variable need not be the batch: it may be the time, or the objects that were found. And rows
# may depend on each other although every tensor has one for each: a reduction over the batch, or a dynamic
# quantization, whose scale is that of the whole tensor. So the graph runs on three different rows, each alone and then
# in batches of two and three, and each row of a batch is compared with the row alone; at last all three again and again
# in one batch, which is as large as it may be and cheap. Source: docs/model-repository.md.


Feed = dict[str, Array]
RunFeed = Callable[[Mapping[str, Array]], Sequence[Array]]
"""Runs the graph, and returns its outputs in their order."""

# Differing magnitudes: beside the second row a scale of the whole tensor leaves little of the first.
_SCALES = (0.1, 10.0, 1.0)
# Of all variable dimensions but the first, tried until the graph takes one. The last ones are for graphs that say
# variable and take only the length that they were exported with.
_LENGTHS = (5, 16, 32, 64, 224, 512, 4, 3, 2, 8, 10, 128, 1)
# One second of sound, where it is the only dimension of each input. What needs a square of it would not fit in memory.
_SAMPLES = (16000,)
_INPUT_BYTES_AT_MOST = 64 << 20
# Of the large batch. More would take memory that the model may never need again.
_LARGE_BYTES, _LARGE_ROWS, _LARGE_SECONDS = 1 << 20, 1024, 1.0
# The range of 8-bit integers from which they are taken for quantized numbers rather than labels.
_QUANTIZED = 16
# The part of the elements of a row that may differ: at a tie, a difference in the last bit decides.
_FREE = 0.01
# Runs that show nothing, because results are empty or not finite, before the graph is taken at its word.
_RUNS_WITHOUT_RESULT = 3

_SHAPE_CURE = "export it with the batch as the first dimension of every output"
_ROWS_CURE = (
    "export it so that each row depends on itself alone; if it is quantized dynamically, quantize it statically"
)


class TrialOver(Exception):
    """Raised by the function that runs the graph when the time limit has passed."""


def _try_batches(
    run: RunFeed, inputs: Sequence[TensorSignature], outputs: Sequence[str], rows: int, margin: float
) -> tuple[BatchingFault | None, str]:
    """Run the graph in batches of up to `rows` rows. Return why they cannot be batched, and why nothing was seen.

    `margin` is how far floating-point numbers may be apart, as a part of the largest in their row: kernels may round
    differently for different numbers of rows.
    A graph that answers the same row twice differently is random: only the shapes of its results are judged.
    """
    failure = "its inputs are too large"
    without_result = 0
    dtypes = [BY_NAME[each.datatype].dtype for each in inputs]
    is_sound = all(each.shape[1:] == (-1,) and dtype.kind == "f" for each, dtype in zip(inputs, dtypes, strict=True))
    lengths = _LENGTHS if any(-1 in each.shape[1:] for each in inputs) else (1,)
    for length, kind in product((*lengths, *_SAMPLES) if is_sound else lengths, _KINDS):
        shapes = [tuple(length if dim == -1 else dim for dim in each.shape[1:]) for each in inputs]
        size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True))
        if size * len(_SCALES) > _INPUT_BYTES_AT_MOST:
            continue
        feeds = [
            {each.name: value for each, value in zip(inputs, _row(inputs, shapes, kind, number), strict=True)}
            for number in range(min(rows, len(_SCALES)))
        ]
        try:
            trial = _Trial(run, outputs, margin, feeds, [list(run(feed)) for feed in feeds])
        except TrialOver:
            return None, "it took too long"
        except FAILURES as exc:
            failure = f"it fails on made-up inputs: {_first_line(exc)}"
            continue
        try:
            began = monotonic()
            fault = trial.fault()
            # As many rows as a second allows at the speed of the batches before.
            large = min(rows, _LARGE_ROWS, _LARGE_BYTES // max(1, size), int(_LARGE_SECONDS / (monotonic() - began)))
            if fault is None and large > len(feeds):
                fault = trial.fault_of_many(large)
        except TrialOver:
            return None, "it took too long"
        except FAILURES as exc:  # the row that it has answered already
            return None, f"it fails now and then: {_first_line(exc)}"
        shows_something = all(
            any(row.size and (row.dtype.kind != "f" or np.isfinite(row).any()) for row in column)
            for column in zip(*trial.alone, strict=True)
        )
        if fault is not None or shows_something or without_result == _RUNS_WITHOUT_RESULT:
            return fault, ""
        without_result += 1
    return None, "" if without_result else failure


@dataclass(frozen=True, slots=True)
class _Trial:
    """Rows that the graph has answered `alone`, and are to be run in batches."""

    run: RunFeed
    outputs: Sequence[str]
    margin: float
    feeds: Sequence[Feed]
    alone: Sequence[Sequence[Array]]

    def fault(self) -> BatchingFault | None:
        for answer in self.alone:
            for name, result in zip(self.outputs, answer, strict=True):
                if result.shape[:1] != (1,):
                    return BatchingFault(
                        f"output '{name}' has shape {shape_text(result.shape)} for one row", _SHAPE_CURE
                    )
        for count in range(2, len(self.feeds) + 1):
            try:
                together = self.run(self._batch(count))
            except FAILURES as exc:
                text = f"it takes one row, and fails on a batch of {count}: {_first_line(exc)}"
                return BatchingFault(text, "export it with a dynamic first dimension")
            for name, result in zip(self.outputs, together, strict=True):
                if result.shape[:1] != (count,):
                    text = f"output '{name}' has shape {shape_text(result.shape)} for a batch of {count}"
                    return BatchingFault(text, _SHAPE_CURE)
            if fault := self._mixed(together, count):
                return fault
        return None

    def fault_of_many(self, count: int) -> BatchingFault | None:
        """Return the fault of a batch of `count` rows, more than there are feeds. A batch that fails shows no fault."""
        try:
            together = self.run(self._batch(count))
        except TrialOver:
            return None
        except FAILURES:
            return None
        return self._mixed(together, count) if all(each.shape[:1] == (count,) for each in together) else None

    def _batch(self, count: int) -> Feed:
        """The feeds in their order, again and again until there are `count`."""
        order = [number % len(self.feeds) for number in range(count)]
        return {name: np.concatenate([feed[name] for feed in self.feeds])[order] for name in self.feeds[0]}

    def _mixed(self, together: Sequence[Array], count: int) -> BatchingFault | None:
        """The fault of the first row that differs from itself alone, where that does not change by itself."""
        for number in range(count):
            row = number % len(self.feeds)
            for at, name in enumerate(self.outputs):
                mine, beside = self.alone[row][at], together[at][number : number + 1]
                seen = _difference(mine, beside, self.margin)
                if seen and not _difference(mine, self.run(self.feeds[row])[at], self.margin):
                    return BatchingFault(f"a row of output '{name}' {seen} in a batch of {count}", _ROWS_CURE)
        return None


def _difference(alone: Array, beside: Array, margin: float) -> str:
    """Return how a row `beside` others differs from the row `alone`; "" if it does not. Both are batches of one."""
    if alone.shape != beside.shape:
        return f"has shape {shape_text(alone.shape[1:])} alone and {shape_text(beside.shape[1:])}"
    differs = ~_close(alone, beside, margin)
    if np.count_nonzero(differs) <= differs.size * _FREE:
        return ""
    first = int(np.argmax(differs))
    return f"has {_shown(alone.reshape(-1)[first])} alone and {_shown(beside.reshape(-1)[first])}"


def _close(alone: Array, beside: Array, margin: float) -> Any:
    if alone.dtype.kind != "f":
        # A tie before the rounding to 8 bits is one apart.
        if alone.dtype.itemsize == 1 and alone.dtype.kind in "iu" and alone.size and np.ptp(alone) >= _QUANTIZED:
            return np.abs(alone.astype(np.int64) - beside) <= 1
        return np.asarray(alone == beside)
    mine, other = alone.astype(np.float64), beside.astype(np.float64)
    finite = np.abs(mine[np.isfinite(mine)])
    most = margin * (finite.max() if finite.size else 0.0) + 1e-9
    with np.errstate(invalid="ignore"):
        near = np.abs(mine - other) <= most
    return near | (mine == other) | (~np.isfinite(mine) & ~np.isfinite(other))


def _floats(row: int, shape: Shape) -> Array:
    """Numbers of both signs, or one number, whose magnitude is the row's."""
    count = math.prod(shape)
    signs = np.where((np.arange(count) + row) % 2, -1.0, 1.0)
    return np.random.default_rng(row).uniform(0.5, 1.0, count) * signs * _SCALES[row]


def _positive(row: int, shape: Shape) -> Array:
    return np.abs(_floats(row, shape))


def _bits(row: int, shape: Shape) -> Array:
    return np.ones(math.prod(shape)) if row == 2 else (np.arange(math.prod(shape)) + row) % 2


def _identifiers(row: int, shape: Shape) -> Array:
    """Numbers from 0 to at most 100, which most vocabularies have, in the second row larger than in the first."""
    return np.random.default_rng(row).integers(0, (5, 101, 20)[row], math.prod(shape))


def _lengths(row: int, shape: Shape) -> Array:
    return _bits(row, shape) + 1


_WORDS = ("one", "two words", "")
_Values = Callable[[int, Shape], Array]


class _Kind(NamedTuple):
    """The values of inputs by their datatypes. `first` is for the first input of integers: often it has identifiers."""

    floats: _Values
    first: _Values
    integers: _Values
    words: Sequence[str]


# Tried until the graph takes one: it may be wrong for identifiers, lengths, logarithms or texts that must be numbers.
_KINDS = (
    _Kind(_floats, _identifiers, _bits, _WORDS),
    _Kind(_floats, _bits, _bits, ("1", "20", "3")),
    _Kind(_positive, _lengths, _lengths, ("", "", "")),
)


def _row(inputs: Sequence[TensorSignature], shapes: Sequence[Shape], kind: _Kind, number: int) -> Iterator[Array]:
    """The inputs of row `number`, with the batch dimension."""
    integers = kind.first
    for each, shape in zip(inputs, shapes, strict=True):
        dtype = BY_NAME[each.datatype].dtype
        if dtype.hasobject:
            texts = [kind.words[(number + at) % len(kind.words)] for at in range(math.prod(shape))]
            values = np.array(texts, object)
        elif dtype.kind == "b":
            values = _bits(number, shape)
        elif dtype.kind == "f":
            values = kind.floats(number, shape)
        else:
            values, integers = integers(number, shape), kind.integers
        yield values.astype(dtype).reshape((1, *shape))


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def _first_line(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0]


# --- the sizes of batches on a GPU, which run before the session serves
#
# Memory is taken and kernels are loaded in the first runs, and TensorRT may build an engine for each shape: in the run
# that brings it, which would be a client's.
#
# ONNX Runtime's convolutions have a plan of cuDNN for one shape, and make a new one whenever it changes, also to one
# that they have had: 150 ms in a network of 53 on an H200 that answers in 2 ms (ONNX Runtime 1.31, cuDNN 9.19). A
# session that is found to need long for changes keeps its size.


_GPU_SECONDS_AT_MOST = 120.0
# For a divisor, a token, and an index of all but the smallest tables.
_MADE_UP = 1
# A change of size is expensive if it takes this many seconds and this many times as long as an execution.
_LONG_S, _TIMES = 0.002, 3
_clock = time.perf_counter


def run_sizes(session: Any, spec: ModelSpec, placement: Placement) -> SteadySizes | None:
    """Run `session` once for each of `batch_sizes`, on made-up inputs. Returns the sizes it has to keep, if it has to.

    Does nothing if the shapes of inputs are not known; a sample of `model_warmup` has them then. A graph may not take
    the inputs: then the log says so, and its clients' are the first.
    """
    sizes = list(batch_sizes(spec))
    shapes = [_shapes(session, spec, size) for size in sizes]
    known = [shape for shape in shapes if shape is not None]
    if not sizes or len(known) < len(shapes):
        return None
    shown = ", ".join(map(str, sizes))
    what = f"batches of {shown}" if spec.max_batch_size > 0 else "a request"
    _log.info("model '%s' runs %s on %s once before it is ready", spec.name, what, placement.device)
    ran: list[dict[str, Any]] = []
    for size, shape in zip(sizes, known, strict=True):
        options = run_options(SessionSettings())
        feed = {each.name: made_up(each, shape[each.name], _MADE_UP) for each in session.get_inputs()}
        try:
            with time_limit(options, _GPU_SECONDS_AT_MOST):
                session.run(list(spec.outputs), feed, options)
        except FAILURES as exc:
            check_device(exc, spec.name, placement)
            error = failure_of(exc, spec.name)
            if isinstance(error, OutOfMemory):
                _log.warning(
                    "model '%s' has not enough memory on %s for a batch of %d: lower max_batch_size, or use fewer "
                    "models or a larger GPU: %s",
                    spec.name,
                    placement.device,
                    size,
                    error.message,
                )
                continue
            _log.info("model '%s' does not take made-up inputs: %s", spec.name, error.message)
            return None
        ran.append(feed)
    if spec.batching is None or len(ran) < 2:
        return None
    try:
        return _steady_sizes(session, spec, largest=sizes[-len(ran)], ran=ran)
    except FAILURES as exc:
        check_device(exc, spec.name, placement)
        return None


def _steady_sizes(session: Any, spec: ModelSpec, *, largest: int, ran: Sequence[dict[str, Any]]) -> SteadySizes | None:
    """Return the sizes with the times of executions and of a change. None if changes take little."""

    def seconds(feed: dict[str, Any]) -> float:
        began = _clock()
        session.run(list(spec.outputs), feed, run_options(SessionSettings()))
        return _clock() - began

    larger, smaller = ran[-2:]
    again = changed = float("inf")
    # A disturbance of the machine reaches one of two.
    for _ in range(2):
        again = min(again, seconds(smaller))
        seconds(larger)
        changed = min(changed, seconds(smaller))
        if changed - again < max(_LONG_S, _TIMES * again):
            return None
    taken: dict[int, float] = {}
    for size in (1, *(1 << power for power in range(1, (largest - 1).bit_length())), largest):
        shape = _shapes(session, spec, size) or {}
        feed = {each.name: made_up(each, shape[each.name], _MADE_UP) for each in session.get_inputs()}
        seconds(feed)
        taken[size] = min(seconds(feed), seconds(feed))
    _log.info(
        "a change of the batch size takes model '%s' %.0f ms, and executions %s: it is changed only where that pays, "
        "and batches are padded or divided to the size",
        spec.name,
        (changed - again) * 1e3,
        ", ".join(f"{size}: {each * 1e3:.1f}" for size, each in taken.items()),
    )
    # The size in use is the latest one.
    return SteadySizes(dict(reversed(taken.items())), changed - again)


def batch_sizes(spec: ModelSpec) -> Iterator[int]:
    """The sizes that are certain to occur, the largest first, so that memory is allocated once; 0: it does not batch.

    None for batch buckets: each instance runs them all.
    """
    if spec.buckets is not None:
        return
    if spec.max_batch_size <= 0:
        yield 0
        return
    batching = spec.batching or spec.sequence
    preferred = batching.preferred_batch_sizes if batching is not None else ()
    sizes = {1, spec.max_batch_size, *preferred}
    yield from sorted((size for size in sizes if 0 < size <= spec.max_batch_size), reverse=True)


def _shapes(session: Any, spec: ModelSpec, size: int) -> dict[str, list[int]] | None:
    """The shape of each input of the graph in a batch of `size`; None if one is not known."""
    shapes: dict[str, list[int]] = {}
    for argument in session.get_inputs():
        given = spec.inputs.get(argument.name)
        if given is None or not argument.shape:
            shape = list(argument.shape)
        else:
            dims = given.dims if given.model_dims is None else given.model_dims
            shape = [size, *dims] if spec.max_batch_size > 0 else list(dims)
        if len(shape) != len(argument.shape) or any(not isinstance(dim, int) or dim < 0 for dim in shape):
            return None
        if given is not None and given.allow_ragged_batch:
            return None
        shapes[argument.name] = shape
    return shapes
