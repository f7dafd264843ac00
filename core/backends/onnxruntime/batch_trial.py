"""Tries sessions in batches: whether their rows are independent, and whether outputs grow that are declared otherwise.

Some exporters declare the outputs as they are for one row: LightGBM's label is [1]. ONNX Runtime does not enforce it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Any

from trident.core.backends.batch_trial import TrialInput, TrialOver, try_batches
from trident.core.backends.onnxruntime.session import FAILURES, SessionSettings, run_options
from trident.core.config.problem import ModelSignature
from trident.core.inference.tensors import BY_NAME, Array

_log = logging.getLogger("trident.backends")

_SECONDS_AT_MOST = 10.0


# What the results of a row may differ by in batches of different sizes, as a part of the largest number in the row.
_MARGIN = 2e-3
# Where a number lies between two integers, the last bit decides which it becomes, and layers follow that magnify it.
_MARGIN_OF_QUANTIZED = 3e-2
# Scales that depend on the batch always show.
_MARGIN_OF_DYNAMIC = 1e-5
# A file begins with its nodes. The weights are behind them.
_BYTES_OF_NODES = 16 << 20


def rounding_margin(path: Path) -> float:
    """How far results may be apart that differ by rounding only, by the operators in the model file at `path`."""
    with path.open("rb") as file:
        nodes = file.read(_BYTES_OF_NODES)
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
    """`signature` with what a trial in batches of up to `rows` shows, if its inputs can be batched at all.

    It ends after `seconds`. `margin` is the result of `rounding_margin`. What shows is a fault, or -1 as the first
    dimension of all outputs. Without a result, which the log says, the declared dimensions decide.
    """
    inputs, outputs = signature.inputs, signature.outputs
    if not inputs or not all(tensor.shape[:1] == (-1,) for tensor in inputs) or not all(each.shape for each in outputs):
        return signature
    if any(tensor.datatype in ("", "BF16") for tensor in (*inputs, *outputs)):
        return signature
    names = [tensor.name for tensor in outputs]
    tried = [TrialInput(each.name, BY_NAME[each.datatype], each.shape[1:]) for each in inputs]
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
        fault, failure = try_batches(run, tried, names, FAILURES, rows, margin)
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
