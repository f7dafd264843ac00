"""The checks of a smoke test, the address it calls, and the requests it sends."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from google.cloud.aiplatform_v1 import Endpoint, PrivateServiceConnectConfig

from deploy.vertex.plan import CheckFailed, Reply
from deploy.vertex.smoke import (
    SmokeInput,
    address_of,
    check_binary,
    check_metrics,
    check_predictions,
    check_v2,
    read_smoke_input,
)

API = "https://us-central1-aiplatform.googleapis.com"
OUTPUT = {"name": "OUTPUT", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
HEAD = json.dumps({"model_name": "m", "model_version": "1", "outputs": [OUTPUT]}).encode()
LENGTH = {"inference-header-content-length": str(len(HEAD))}


def check_two(reply: Reply) -> str:
    return check_predictions(reply, 2)


def given(folder: Path, *inputs: Mapping[str, object], **more: object) -> SmokeInput:
    (folder / "request.json").write_text(json.dumps({"inputs": inputs, **more}))
    return read_smoke_input(folder / "request.json", None)


@pytest.mark.parametrize(
    ("check", "reply", "told"),
    [
        (check_two, Reply(200, {}, b'{"predictions": [1, [2]], "deployedModelId": "7"}'), "2 predictions by deployed"),
        (check_v2, Reply(200, {}, HEAD), "m 1: OUTPUT FP32 [2]"),
        (check_binary, Reply(200, LENGTH, HEAD + bytes(8)), "m 1: OUTPUT FP32 [2], 8 bytes"),
        (check_metrics, Reply(200, {}, b"# HELP\nnv_inference_request_success 1\n"), "2 lines"),
    ],
)
def test_good_response_passes_the_check(check: Callable[[Reply], str], reply: Reply, told: str) -> None:
    assert check(reply).startswith(told)


@pytest.mark.parametrize(
    ("check", "reply", "fault"),
    [
        (check_two, Reply(503, {}, b'{"error": "loading"}'), 'status 503: {"error": "loading"}'),
        (check_two, Reply(200, {}, b'{"predictions": [1]}'), "1 predictions for 2 instances"),
        (check_two, Reply(200, {}, b"<html>"), "not one to predict"),
        (check_v2, Reply(400, {}, b"no"), "status 400: no"),
        (check_v2, Reply(200, {}, b"[]"), "the response has no outputs"),
        (check_v2, Reply(200, {}, b'{"outputs": []}'), "the response has no outputs"),
        (check_binary, Reply(200, {}, HEAD), "so its outputs are not binary"),
        (check_binary, Reply(200, LENGTH, HEAD + bytes(7)), "declares 8 after it"),
        (check_metrics, Reply(200, {}, b"up 1\n"), "the page has no nv_inference_request_success"),
    ],
)
def test_bad_response_fails_the_check(check: Callable[[Reply], str], reply: Reply, fault: str) -> None:
    with pytest.raises(CheckFailed) as caught:
        check(reply)
    assert fault in str(caught.value)


def test_address_depends_on_the_kind_of_endpoint() -> None:
    assert address_of(Endpoint(), API, "") == (API, False, False)
    dedicated = Endpoint(
        dedicated_endpoint_enabled=True, dedicated_endpoint_dns="e.us-central1-1.prediction.vertexai.goog"
    )
    assert address_of(dedicated, API, "") == ("https://e.us-central1-1.prediction.vertexai.goog", True, False)
    private = Endpoint(private_service_connect_config=PrivateServiceConnectConfig(enable_private_service_connect=True))
    assert address_of(private, API, "10.0.0.7") == ("https://10.0.0.7", True, True)
    with pytest.raises(CheckFailed, match="--address=HOST"):
        address_of(private, API, "")


def test_instances_are_made_along_the_first_dimension(tmp_path: Path) -> None:
    pictures = {"name": "A", "datatype": "FP32", "shape": [2, 1, 2], "data": [1, 2, 3, 4]}
    words = {"name": "B", "datatype": "BYTES", "shape": [2], "data": ["a", "ü"]}
    found = given(tmp_path, pictures, words)
    assert found.instances == [{"A": [[1, 2]], "B": "a"}, {"A": [[3, 4]], "B": "ü"}]


def test_binary_form_has_all_tensors(tmp_path: Path) -> None:
    numbers = {"name": "A", "datatype": "INT16", "shape": [1, 2], "data": [1, -2]}
    words = {"name": "B", "datatype": "BYTES", "shape": [1], "data": ["ü"]}
    outputs = [{"name": "OUTPUT", "parameters": {"classification": 3}}]
    body, content_type = given(tmp_path, numbers, words, outputs=outputs).binary()
    length = int(content_type.rpartition("=")[2])
    head = json.loads(body[:length])
    assert [each["parameters"]["binary_data_size"] for each in head["inputs"]] == [4, 6]
    assert head["outputs"] == [{"name": "OUTPUT", "parameters": {"binary_data": True}}]
    assert body[length:] == b"\x01\x00\xfe\xff" + b"\x02\x00\x00\x00" + "ü".encode()


def test_large_form_is_the_same_request(tmp_path: Path) -> None:
    found = given(tmp_path, {"name": "A", "datatype": "INT8", "shape": [1], "data": [1]})
    assert len(found.large()) == 1_600_000
    assert json.loads(found.large()) == found.document
