from __future__ import annotations

from typing import Any

import pytest

from trident.adapters.sagemaker.invocations import add_timing, adopt_headers, parameter_headers
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.inference.request import InferenceRequest, InferenceTimes, Parameter

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
NAMES = ("Session-Id", "Target-Model", "Target-Variant", "Inference-Component", "Target-Container-Hostname")


def adopted(headers: dict[str, str], parameters: dict[str, Parameter] | None = None, request_id: str = "") -> Any:
    request = InferenceRequest("m", [], id=request_id)
    if parameters is not None:
        request.parameters = parameters
    environ = {f"HTTP_X_AMZN_SAGEMAKER_{k.upper().replace('-', '_')}": v for k, v in headers.items()}
    adopt_headers(environ | {"HTTP_ACCEPT": "*/*"}, request)
    return request


def test_without_headers_nothing_is_added() -> None:
    request = adopted({})
    assert request.parameters is None
    assert request.id == ""


def test_headers_become_parameters_under_their_names() -> None:
    request = adopted(dict.fromkeys(NAMES, "value") | {"Unknown-Header": "x"})
    assert request.parameters == {f"X-Amzn-SageMaker-{name}": "value" for name in NAMES}


@pytest.mark.parametrize(
    ("attributes", "pairs"),
    [
        ("a=1,b = two words ,c=x=y", {"a": "1", "b": "two words", "c": "x=y"}),
        ("c000b4f9-df62-4c85-a0bf", {}),
        ("=1,,a", {}),
        ("a=", {"a": ""}),
        ("priority=1,timeout=2,sequence_id=3,binary_data_output=true,triton_x=1,mine=2", {"mine": "2"}),
    ],
)
def test_custom_attributes_become_one_parameter_and_their_pairs(attributes: str, pairs: dict[str, str]) -> None:
    request = adopted({"Custom-Attributes": attributes})
    assert request.parameters == {ATTRIBUTES: attributes, **pairs}
    assert (request.priority, request.timeout_us, request.correlation_id) == (0, 0, 0)


def test_parameters_of_the_body_take_precedence() -> None:
    request = adopted({"Custom-Attributes": "a=1,b=2", "Inference-Id": "header"}, {"a": 7}, "body")
    assert request.parameters == {ATTRIBUTES: "a=1,b=2", "a": 7, "b": "2"}
    assert request.id == "body"


def test_the_inference_id_becomes_a_missing_request_id() -> None:
    assert adopted({"Inference-Id": "x" * 64}).id == "x" * 64


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("Custom-Attributes", 1024),
        ("Inference-Id", 64),
        ("Session-Id", 256),
        ("Target-Model", 1024),
        ("Target-Variant", 63),
        ("Enable-Explanations", 64),
    ],
)
def test_headers_over_their_limits_are_refused(name: str, limit: int) -> None:
    adopted({name: "x" * limit})
    with pytest.raises(InvalidRequest, match=f"X-Amzn-SageMaker-{name} has {limit + 1} characters, at most {limit}"):
        adopted({name: "x" * (limit + 1)})
    with pytest.raises(InvalidRequest, match="visible ASCII"):
        adopted({name: "caf\xe9"})


def test_response_parameters_become_headers() -> None:
    parameters: dict[str, Parameter] = {
        ATTRIBUTES: "a=1",
        "X-Amzn-SageMaker-New-Session-Id": "id; Expires=2030-01-01T00:00:00Z",
        "X-Amzn-SageMaker-Closed-Session-Id": 7,
        "X-Amzn-SageMaker-Target-Model": "no answer",
        "Set-Cookie": "no",
    }
    assert parameter_headers(parameters) == [
        (ATTRIBUTES, "a=1"),
        ("X-Amzn-SageMaker-New-Session-Id", "id; Expires=2030-01-01T00:00:00Z"),
        ("X-Amzn-SageMaker-Closed-Session-Id", "7"),
    ]
    assert parameter_headers({}) == []


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: b", "caf\xe9", "x" * 1025])
def test_invalid_header_values_of_the_model_are_errors(value: str) -> None:
    with pytest.raises(BackendFailed, match=ATTRIBUTES):
        parameter_headers({ATTRIBUTES: value})


TIMES = InferenceTimes(1000, 2000, 3000, 4000, 8)
TIMING = (
    "timing_queue_us=1,timing_compute_input_us=2,timing_compute_infer_us=3,timing_compute_output_us=4,"
    "timing_batch_size=8"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, TIMING),
        ("a=1", f"a=1,{TIMING}"),
        ("x" * (1023 - len(TIMING)), "x" * (1023 - len(TIMING)) + "," + TIMING),
        ("x" * (1024 - len(TIMING)), "x" * (1024 - len(TIMING))),
    ],
    ids=["alone", "behind the model's", "just fits", "too long"],
)
def test_times_join_the_custom_attributes_where_they_fit(before: str | None, after: str) -> None:
    headers = [("Content-Type", "text/csv")] + ([] if before is None else [(ATTRIBUTES, before)])
    add_timing(TIMES, headers)
    assert headers == [("Content-Type", "text/csv"), (ATTRIBUTES, after)]
