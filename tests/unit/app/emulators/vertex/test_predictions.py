from __future__ import annotations

import json
from typing import Any

import pytest

from trident.app.emulators.vertex.limits import CanonicalCode, GoogleError
from trident.app.emulators.vertex.predictions import PredictionFault, read_predict_request, read_predictions


def test_the_container_gets_only_instances_and_parameters() -> None:
    body = b'{"endpoint": "e", "instances": [1, {"a": [0.1, "x"]}], "parameters": {"b": true}}'
    request = read_predict_request(body)
    assert request.count == 2
    assert json.loads(request.body) == {"instances": [1, {"a": [0.1, "x"]}], "parameters": {"b": True}}
    assert json.loads(read_predict_request(b'{"instances": [1], "parameters": null}').body) == {"instances": [1]}


def test_an_explain_request_may_have_more_fields() -> None:
    body = b'{"instances": [1], "deployedModelId": "34"}'
    assert json.loads(read_predict_request(body, is_explain=True).body) == {"instances": [1]}
    with pytest.raises(GoogleError, match="deployedModelId"):
        read_predict_request(body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Invalid JSON payload"),
        (b"[1]", "the root must be an object"),
        (b'{"instances": [NaN]}', "Invalid JSON payload"),
        (b'{"inputs": []}', 'Unknown name "inputs"'),
        (b"{}", "at least one instance"),
        (b'{"instances": []}', "at least one instance"),
        (b'{"instances": {"a": 1}}', "at least one instance"),
    ],
)
def test_invalid_requests_are_refused(body: bytes, text: str) -> None:
    with pytest.raises(GoogleError, match=text) as refusal:
        read_predict_request(body)
    assert (refusal.value.code, refusal.value.status) == (400, CanonicalCode.INVALID_ARGUMENT)


def test_predictions_may_have_metadata() -> None:
    found = read_predictions(b'{"predictions": [1, null], "metadata": {"a": 1}, "extra": 1}')
    assert (found.values, found.metadata) == ([1, None], {"a": 1})
    assert found.fault(2) == ""
    assert found.fault(3) == "answered 3 instances with 2 predictions"


@pytest.mark.parametrize("body", [b"", b"[1]", b"{}", b'{"predictions": {}}', b'{"predictions": [NaN]}', b"\xff"])
def test_an_answer_without_predictions_is_a_fault(body: bytes) -> None:
    with pytest.raises(PredictionFault, match="answered 200 with"):
        read_predictions(body)


def test_an_error_has_googles_format() -> None:
    def document(error: GoogleError) -> Any:
        return json.loads(error.body())["error"]

    assert document(GoogleError(503, "no")) == {"code": 503, "message": "no", "status": "UNAVAILABLE"}
    assert document(GoogleError(418, "no"))["status"] == "FAILED_PRECONDITION"
    assert document(GoogleError(599, "no"))["status"] == "INTERNAL"
