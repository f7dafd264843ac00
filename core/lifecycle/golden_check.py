"""The golden check: a version answers the golden requests of its model as they say, or it is not loaded.

Source: docs/spec/model-config.md section 2.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trident.core.backends.backend import BackendInstance
from trident.core.config.golden import (
    EXACT,
    ExpectedOutput,
    GoldenRequest,
    Tolerance,
    as_numbers,
    golden_requests,
    is_floating,
)
from trident.core.config.request_check import BatchForm
from trident.core.config.spec import ModelSpec
from trident.core.errors import ModelLoadFailed, ServerError
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import Array, Datatype, shape_text
from trident.core.scheduling.run_once import run_once

if TYPE_CHECKING:  # tools compare answers without a version
    from trident.core.lifecycle.version import ModelVersion
    from trident.core.repository.repository import ModelDirectory

_LONGEST_SHOWN = 200


def golden_check(version: ModelVersion, directory: ModelDirectory) -> Callable[[BackendInstance], None]:
    """Read the golden requests of a version that is being loaded. Returns the check of one of its instances.

    Raises InvalidModelConfig, and the check ModelLoadFailed.
    """
    golden = golden_requests(directory.path, version.spec, version.version)

    def check(instance: BackendInstance) -> None:
        for request in golden:
            version.attempt.begin(f"golden request '{request.name}' on instance '{instance.placement.name}'")
            check_golden(instance, version.spec, version.check, request)

    return check


def check_golden(
    instance: BackendInstance, spec: ModelSpec, check: Callable[[InferenceRequest], BatchForm], request: GoldenRequest
) -> None:
    """Run `request` alone on `instance`, which no other thread may use meanwhile. No statistics count it.

    Raises ModelLoadFailed if it fails or its response differs. It names every output that differs, with the index and
    both values of its first different element.
    """
    about = f"golden request '{request.name}' of model '{spec.name}' version {spec.version}"
    try:
        (outputs,) = run_once(instance, [request.inference_request(spec)], check)
    except ServerError as error:
        raise ModelLoadFailed(f"{about} failed: {error.message}", hint=error.hint, model=spec.name) from error
    found = list(differences(request.expected, outputs))
    if found:
        raise ModelLoadFailed(
            f"{about}: {'; '.join(found)}",
            hint=f"golden/{request.name} says what is expected, and with what tolerance",
            model=spec.name,
        )


def differences(expected: Sequence[ExpectedOutput], outputs: Sequence[OutputTensor]) -> Iterator[str]:
    """Yield the differences in the outputs of a response, one for each unexpected output."""
    by_name = {output.name: output for output in outputs}
    for wanted in expected:
        output = by_name.get(wanted.tensor.name)
        difference = "is missing" if output is None else _difference(wanted, output)
        if difference:
            yield f"output '{wanted.tensor.name}' {difference}"


def _difference(expected: ExpectedOutput, output: OutputTensor) -> str:
    tensor, tolerance = expected.tensor, expected.tolerance
    if output.datatype != tensor.datatype.name:
        return f"has datatype {output.datatype}, expected {tensor.datatype.name}"
    if output.shape != tensor.array.shape:
        return f"has shape {shape_text(output.shape)}, expected {shape_text(tensor.array.shape)}"
    actual, wanted = (as_numbers(array.reshape(-1), tensor.datatype) for array in (output.array, tensor.array))
    differing = np.flatnonzero(~_close(actual, wanted, tensor.datatype, tolerance))
    if not differing.size:
        return ""
    first = differing[0]
    index = [int(each) for each in np.unravel_index(first, output.shape)]
    allowed = ""
    if tolerance != EXACT:
        allowed = f" (tolerance {tolerance.absolute:g} absolute, {tolerance.relative:g} relative)"
    count = f"{differing.size} of {wanted.size} elements differ{'s' if differing.size == 1 else ''}"
    return f"at {index} is {_shown(actual[first])}, expected {_shown(wanted[first])}{allowed}; {count}"


def _close(actual: Array, wanted: Array, datatype: Datatype, tolerance: Tolerance) -> Array:
    """Which elements of two flat arrays are equal within `tolerance`. NaN equals NaN, infinities only themselves."""
    equal: Array = (actual == wanted).astype(bool)
    if is_floating(datatype):
        equal |= np.isnan(actual) & np.isnan(wanted)
    if tolerance == EXACT:  # always so for BOOL and BYTES
        return equal
    with np.errstate(over="ignore", invalid="ignore"):
        allowed = tolerance.absolute + tolerance.relative * np.abs(wanted.astype(np.float64))
        close: Array = (_distance(actual, wanted) <= allowed) & np.isfinite(actual) & np.isfinite(wanted)
    return equal | close


def _distance(actual: Array, wanted: Array) -> Array:
    """|actual - wanted| of each element as FP64, without overflow in between."""
    if actual.dtype.kind == "f":
        difference: Array = np.abs(actual.astype(np.float64) - wanted.astype(np.float64))
        return difference
    # Modulo 2**64 the larger minus the smaller is right for all signs; a signed difference could overflow.
    larger, smaller = np.maximum(actual, wanted).astype(np.uint64), np.minimum(actual, wanted).astype(np.uint64)
    return (larger - smaller).astype(np.float64)


def _shown(value: object) -> str:
    """One element as a golden file writes it: with the digits that its datatype needs, text in quotes."""
    if isinstance(value, bytes):
        text = value.decode("utf-8", "backslashreplace")
        return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…")
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), str(value))
