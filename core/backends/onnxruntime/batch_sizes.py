"""Runs batches of the sizes that a session on a GPU is going to get, before it serves.

For each shape that is new to it cuDNN searches for the fastest algorithm, and TensorRT may build an engine: in the run
that brings the shape, which would be a client's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
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
from trident.core.config.placement import Placement
from trident.core.config.spec import ModelSpec
from trident.core.errors import OutOfMemory

_log = logging.getLogger("trident.backends")

_SECONDS_AT_MOST = 120.0
# For a divisor, a token, and an index of all but the smallest tables.
_MADE_UP = 1


def run_sizes(session: Any, spec: ModelSpec, placement: Placement) -> None:
    """Run `session` once for each of `batch_sizes`, on made-up inputs.

    Does nothing if the shapes of inputs are not known; a sample of `model_warmup` has them then. A graph may not take
    the inputs: then the log says so, and its clients' are the first.
    """
    sizes = list(batch_sizes(spec))
    shapes = [_shapes(session, spec, size) for size in sizes]
    known = [shape for shape in shapes if shape is not None]
    if not sizes or len(known) < len(shapes):
        return
    shown = ", ".join(map(str, sizes))
    what = f"batches of {shown}" if spec.max_batch_size > 0 else "a request"
    _log.info("model '%s' runs %s on %s once before it is ready", spec.name, what, placement.device)
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
            return


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
