"""Golden requests run on real ONNX models, and the error of a response that differs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.unit import onnx_models
from tests.unit.onnx_serving import add_sub_config, identity_config, serving
from trident.core.config.golden import EXACT, FLOATING, ExpectedOutput, GoldenRequest, GoldenTensor, Tolerance
from trident.core.config.request_check import RequestValidator
from trident.core.errors import ModelLoadFailed
from trident.core.inference.tensors import BY_NAME
from trident.core.lifecycle.golden_check import check_golden

BEGINNING = "golden request 'cat.json' of model 'model' version 1"


def tensor(name: str, datatype: str, values: Any) -> GoldenTensor:
    """`values` are a numpy array if they are BYTES or bit patterns."""
    row = BY_NAME[datatype]
    return GoldenTensor(name, row, values if isinstance(values, np.ndarray) else np.array(values, dtype=row.dtype))


def golden(
    inputs: Sequence[GoldenTensor],
    outputs: Sequence[GoldenTensor],
    tolerance: Tolerance = FLOATING,
    asked: tuple[str, ...] = (),
) -> GoldenRequest:
    return GoldenRequest(
        "cat.json", "", tuple(inputs), asked, tuple(ExpectedOutput(output, tolerance) for output in outputs)
    )


def difference(model: onnx.ModelProto, config: str, folder: Path, request: GoldenRequest) -> str:
    """The error of `check_golden` without its fixed beginning; empty without an error."""
    message = BEGINNING
    with serving(model, config, folder) as served:
        try:
            check_golden(served.instance, served.spec, RequestValidator(served.spec).check, request)
        except ModelLoadFailed as error:
            message = error.message
    assert message.startswith(BEGINNING)
    return message.removeprefix(BEGINNING)


def echoed(folder: Path, datatype: str, sent: Any, expected: Any, tolerance: Tolerance = FLOATING) -> str:
    """The difference between `expected` and the answer of an identity model to `sent`."""
    request = golden([tensor("INPUT0", datatype, sent)], [tensor("OUTPUT0", datatype, expected)], tolerance)
    return difference(onnx_models.identity(datatype), identity_config(datatype, [-1]), folder, request)


def test_different_outputs_are_named_with_their_first_element(tmp_path: Path) -> None:
    inputs = [tensor(f"INPUT{n}", "INT32", [[1] * 16] * 2) for n in range(2)]
    total = np.full((2, 16), 2, np.int32)
    total[0, 3], total[1, 0] = 7, 8
    outputs = [tensor("OUTPUT0", "INT32", total), tensor("OUTPUT1", "INT32", np.eye(2, 16, dtype=np.int32))]
    request = golden(inputs, outputs, EXACT)
    assert difference(onnx_models.add_sub(), add_sub_config(), tmp_path, request) == (
        ": output 'OUTPUT0' at [0, 3] is 2, expected 7; 2 of 32 elements differ; "
        "output 'OUTPUT1' at [0, 0] is 0, expected 1; 2 of 32 elements differ"
    )


def test_a_difference_shows_the_tolerance_and_the_digits_of_the_datatype(tmp_path: Path) -> None:
    assert echoed(tmp_path, "FP32", [[0.5, 0.12]], [[0.5, 0.34]]) == (
        ": output 'OUTPUT0' at [0, 1] is 0.12, expected 0.34 (tolerance 1e-05 absolute, 0.0001 relative); "
        "1 of 2 elements differs"
    )


@pytest.mark.parametrize(
    ("datatype", "sent", "expected", "tolerance", "same"),
    [
        ("INT8", -128, 127, Tolerance(255, 0), True),
        ("INT8", -128, 127, Tolerance(254, 0), False),
        ("INT64", -(2**63), 2**63 - 1, Tolerance(1e18, 0), False),
        ("INT64", 2**62 + 1, 2**62, EXACT, False),
        ("INT64", 2**62 + 1, 2**62, Tolerance(1, 0), True),
        ("UINT64", 0, 2**64 - 1, Tolerance(1, 0.5), False),
        ("UINT64", 2**64 - 1, 2**64 - 2, Tolerance(1, 0), True),
        ("UINT64", 2**64 - 1, 2**64 - 2, Tolerance(0.5, 0), False),
        ("INT32", 90, 100, Tolerance(0, 0.1), True),
        ("INT32", 89, 100, Tolerance(0, 0.1), False),
    ],
)
def test_integers_are_compared_exactly_at_their_limits(
    tmp_path: Path, datatype: str, sent: int, expected: int, tolerance: Tolerance, same: bool
) -> None:
    assert (echoed(tmp_path, datatype, [[sent]], [[expected]], tolerance) == "") is same


def test_another_shape_or_datatype_is_a_difference(tmp_path: Path) -> None:
    assert echoed(tmp_path, "FP32", [[1, 2]], [[1], [2]]) == ": output 'OUTPUT0' has shape [1,2], expected [2,1]"
    request = golden([tensor("INPUT0", "FP32", [[1]])], [tensor("OUTPUT0", "FP64", [[1]])])
    assert difference(onnx_models.identity(), identity_config("FP32", [-1]), tmp_path, request) == (
        ": output 'OUTPUT0' has datatype FP32, expected FP64"
    )


def test_a_request_that_the_model_refuses_gives_the_reason(tmp_path: Path) -> None:
    request = golden([tensor("INPUT0", "FP32", [[1]] * 9)], [tensor("OUTPUT0", "FP32", [[1]] * 9)])
    found = difference(onnx_models.identity(), identity_config("FP32", [-1]), tmp_path, request)
    assert found == " failed: [request id: cat.json] inference request batch-size must be <= 8 for 'model'"
