"""The inference request and its times."""

from __future__ import annotations

from tests.unit.request_fields import FIELDS
from trident.core.inference.request import (
    CloseReason,
    InferenceRequest,
    InferenceTimes,
    InputTensor,
)


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


def test_times_become_parameters_in_microseconds() -> None:
    assert InferenceTimes(1_500, 2_999, 3_000_000, 999, 8, CloseReason.PREFERRED).parameters() == {
        "timing_queue_us": 1,
        "timing_compute_input_us": 2,
        "timing_compute_infer_us": 3000,
        "timing_compute_output_us": 0,
        "timing_batch_size": 8,
        "timing_batch_close": "preferred",
    }
    assert "timing_batch_close" not in InferenceTimes(1, 2, 3, 4, 5).parameters()


def test_requests_that_belong_together_have_the_longest_of_each_time_and_the_reason_of_the_last() -> None:
    first, second = (
        InferenceTimes(1, 20, 3, 40, 5, CloseReason.SHAPE),
        InferenceTimes(10, 2, 30, 4, 1, CloseReason.FULL),
    )
    assert InferenceTimes.longest([first, None, second]) == InferenceTimes(10, 20, 30, 40, 5, CloseReason.FULL)
    assert InferenceTimes.longest([None]) is None
