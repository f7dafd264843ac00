from __future__ import annotations

from tests.unit.request_fields import FIELDS
from trident.core.inference.request import InferenceRequest, InputTensor


def test_a_request_with_other_inputs_has_all_other_fields() -> None:
    request = InferenceRequest(
        "m",
        [],
        model_version=1,
        id="a",
        outputs=("o",),
        parameters={"p": 1},
        priority=2,
        timeout_us=3,
        correlation_id=4,
        sequence_start=True,
        sequence_end=True,
    )
    inputs: list[InputTensor] = []
    made = request.with_inputs(inputs, model_version=5, id="b")
    assert (made.model_version, made.id) == (5, "b")
    assert made.inputs is inputs
    others = [field for field in FIELDS if field not in ("inputs", "model_version", "id")]
    assert [getattr(made, field) for field in others] == [getattr(request, field) for field in others]
    assert made.parameters is not request.parameters
