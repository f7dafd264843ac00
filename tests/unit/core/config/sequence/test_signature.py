from __future__ import annotations

import pytest

from tests.unit.core.config.sequence.sequence_configs import normalized
from trident.core.config.problem import ModelSignature, TensorSignature
from trident.core.config.validate import control_problems

START = 'control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (TensorSignature("S", "INT32", (-1, 1)), None),
        (TensorSignature("S", "INT32", (-1, -1)), None),
        (
            TensorSignature("X", "INT32", (-1, 1)),
            "configuration specified sequence control 'S', but model does not provide that input",
        ),
        (
            TensorSignature("S", "INT32", (-1, 2)),
            "unable to load model 'm', sequence control 'S' in model has dims [2] but dims [1] is expected",
        ),
        (
            TensorSignature("S", "FP32", (-1, 1)),
            "unable to load model 'm', sequence control 'S', the model expects data-type FLOAT but the model "
            "configuration specifies data-type TYPE_INT32",
        ),
    ],
)
def test_a_control_must_be_an_input_of_the_graph(tensor: TensorSignature, problem: str | None) -> None:
    signature = ModelSignature(inputs=(tensor,), outputs=(), optional_inputs=())
    found = [each.message for each in control_problems(normalized(START), signature, "m")]
    assert found == ([] if problem is None else [problem])
