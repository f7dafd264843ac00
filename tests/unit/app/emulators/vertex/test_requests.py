"""Calls of Vertex AI's API: the bodies, and what reaches the container."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from trident.app.emulators.vertex.limits import CanonicalCode, Deployment, GoogleError
from trident.app.emulators.vertex.predictions import (
    PredictionFault,
    passed_back,
    read_predict_request,
    read_predictions,
    read_raw_request,
    read_sdk_request,
    sdk_answer,
    sdk_answers,
)

DEPLOYMENT = Deployment(endpoint_id="12", deployed_model_id="34")


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


OWN = {
    "X-Vertex-AI-Endpoint-Id": "12",
    "X-Vertex-AI-Deployed-Model-Id": "34",
    "X-Vertex-AI-Model": DEPLOYMENT.model,
    "X-Vertex-AI-Model-Version-Id": "1",
}


def test_headers_reach_the_container_except_those_of_the_connection() -> None:
    headers = {
        "Host": "h",
        "Authorization": "Bearer secret",
        "Content-Length": "1",
        "Connection": "close",
        "X-Goog-User-Project": "p",
        "Content-Type": "a/b",
        "X-Vertex-Ai-Triton-Redirect": "v2",
        "Accept": "*/*",
    }
    request = read_raw_request(headers.items(), b"\x00body")
    assert request.body == b"\x00body"
    assert request.headers == {"Content-Type": "a/b", "X-Vertex-Ai-Triton-Redirect": "v2", "Accept": "*/*"}


@pytest.mark.parametrize("header", [("A", "b\r\n c"), ("A b", "c"), ("A", "b\x00")])
def test_a_header_that_cannot_be_forwarded_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(GoogleError, match="malformed"):
        read_raw_request([header], b"")


@pytest.mark.parametrize("data", ["+/+/AA==", "-_-_AA=="])
def test_the_envelope_has_the_body(data: str) -> None:
    body = json.dumps({"httpBody": {"contentType": "a/b", "data": data}}).encode()
    request = read_sdk_request({"Content-Type": "application/json", "X-Mine": "1"}.items(), body)
    assert request.headers == {"X-Mine": "1", "Content-Type": "a/b"}
    assert request.body == base64.b64decode("+/+/AA==")


def test_the_envelope_may_be_empty() -> None:
    request = read_sdk_request([("User-Agent", "x")], b'{"httpBody": {}}')
    assert (request.headers, request.body) == ({}, b"")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"httpBody": 1}',
        b'{"httpBody": {"data": "?"}}',
        b'{"httpBody": {"data": "\xc3\xa4"}}',
        b'{"httpBody": {"data": 1}}',
        b'{"httpBody": {"contentType": 1}}',
        b'{"httpBody": {"contentType": "a\\nb"}}',
    ],
)
def test_a_malformed_envelope_is_refused(body: bytes) -> None:
    with pytest.raises(GoogleError, match="Invalid"):
        read_sdk_request([], body)


def test_the_answer_has_the_containers_and_the_platforms_headers() -> None:
    headers = [
        ("Content-Type", "a/b"),
        ("X-Mine", "1"),
        ("Date", "d"),
        ("Content-Length", "1"),
        ("Transfer-Encoding", "x"),
    ]
    assert passed_back([*headers, ("x-vertex-ai-model", "other"), ("Bad", "a\r\n b")], DEPLOYMENT) == {
        "Content-Type": "a/b",
        "X-Mine": "1",
        **OWN,
    }


def test_answers_are_put_into_envelopes() -> None:
    headers = [("content-type", "a/b")]
    assert json.loads(sdk_answer(headers, b"\x00")) == {"contentType": "a/b", "data": "AA=="}
    streamed = list(sdk_answers(headers, iter([b"1", b"2"])))
    assert len(streamed) == 3  # one for each part, as it arrives
    assert [each["data"] for each in json.loads(b"".join(streamed))] == ["MQ==", "Mg=="]
    assert json.loads(b"".join(sdk_answers(headers, iter([])))) == []
