from __future__ import annotations

import base64
import json

import pytest

from trident.app.emulators.vertex.limits import Deployment, GoogleError
from trident.app.emulators.vertex.predictions import (
    passed_back,
    read_raw_request,
    read_sdk_request,
    sdk_answer,
    sdk_answers,
)

DEPLOYMENT = Deployment(endpoint_id="12", deployed_model_id="34")
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
