"""Runs batches of the sizes that a session on a GPU is going to get, before it serves.

Memory is taken and kernels are loaded in the first runs, and TensorRT may build an engine for each shape: in the run
that brings it, which would be a client's.

ONNX Runtime's convolutions have a plan of cuDNN for one shape, and make a new one whenever it changes, also to one that
they have had: 150 ms in a network of 53 on an H200 that answers in 2 ms (ONNX Runtime 1.31, cuDNN 9.19). A session that
is found to need long for changes keeps its size.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from trident.core.backends.onnxruntime.batch_trial import time_limit
from trident.core.backends.onnxruntime.session import (
    FAILURES,
    SessionSettings,
    check_device,
    failure_of,
    made_up,
    run_options,
)
from trident.core.backends.tensors.gather import SteadySizes
from trident.core.config.placement import Placement
from trident.core.config.spec import ModelSpec
from trident.core.errors import OutOfMemory

_log = logging.getLogger("trident.backends")

_SECONDS_AT_MOST = 120.0
# For a divisor, a token, and an index of all but the smallest tables.
_MADE_UP = 1
# A change of size is expensive if it takes this many seconds and this many times as long as an execution.
_LONG_S, _TIMES = 0.002, 3


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
            with time_limit(options, _SECONDS_AT_MOST):
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
    """What executions take, and changes of size. None if changes take little."""

    def seconds(feed: dict[str, Any]) -> float:
        began = time.perf_counter()
        session.run(list(spec.outputs), feed, run_options(SessionSettings()))
        return time.perf_counter() - began

    larger, smaller = ran[-2:]
    again = changed = float("inf")
    # What disturbs the machine disturbs one of two.
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
