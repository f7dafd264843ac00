"""The checks of a smoke test, and the address it calls."""

from __future__ import annotations

import pytest
from google.cloud.aiplatform_v1 import Endpoint, PrivateServiceConnectConfig

from deploy.smoke_forms import Agreement, Form
from deploy.vertex.api import CallFailed, Reply
from deploy.vertex.smoke import Check, address_of, check_answers, check_metrics

API = "https://us-central1-aiplatform.googleapis.com"
V2 = b'{"outputs": [{"name": "OUTPUT", "datatype": "FP32", "shape": [2], "data": [0, 1]}]}'
HEAD = V2.replace(b'"data": [0, 1]', b'"parameters": {"binary_data_size": 8}')
LENGTH = {"inference-header-content-length": str(len(HEAD))}
TENSOR = b"\0\0\0\0\0\0\x80\x3f"


def checks() -> dict[str, Check]:
    agreement = Agreement(2)
    return {form: check_answers(agreement, form) for form in Form} | {"metrics": check_metrics}


def test_answers_of_all_forms_agree() -> None:
    check = checks()
    told = [
        check["instances"](Reply(200, {}, b'{"predictions": [0, 1], "deployedModelId": "7"}')),
        check["v2"](Reply(200, {}, V2)),
        check["binary"](Reply(200, LENGTH, HEAD + TENSOR)),
    ]
    assert told == ["2 rows of 1 values"] * 3
    assert check["metrics"](Reply(200, {}, b"# HELP\nnv_inference_request_success 1\n")) == "2 lines"


@pytest.mark.parametrize(
    ("form", "reply", "fault"),
    [
        ("instances", Reply(503, {}, b'{"error": "loading"}'), 'status 503: {"error": "loading"}'),
        ("instances", Reply(200, {}, b'{"predictions": [1]}'), "1 rows, but the request has 2"),
        ("v2", Reply(200, {}, V2.replace(b"1]", b"2]")), "row 2, column 1 is 2, not 1"),
        ("v2", Reply(200, {}, b"[]"), "the answer cannot be read"),
        ("binary", Reply(200, {}, HEAD), "the answer cannot be read"),
        ("binary", Reply(200, LENGTH, HEAD + bytes(7)), "the answer cannot be read"),
        ("metrics", Reply(200, {}, b"up 1\n"), "the page has no nv_inference_request_success"),
    ],
)
def test_a_wrong_answer_fails_the_check(form: str, reply: Reply, fault: str) -> None:
    check = checks()
    if form != "instances":
        check["instances"](Reply(200, {}, b'{"predictions": [0, 1]}'))
    with pytest.raises(CallFailed) as caught:
        check[form](reply)
    assert fault in str(caught.value)


def test_address_depends_on_the_kind_of_endpoint() -> None:
    assert address_of(Endpoint(), API, "") == (API, False, False)
    dedicated = Endpoint(
        dedicated_endpoint_enabled=True, dedicated_endpoint_dns="e.us-central1-1.prediction.vertexai.goog"
    )
    assert address_of(dedicated, API, "") == ("https://e.us-central1-1.prediction.vertexai.goog", True, False)
    private = Endpoint(private_service_connect_config=PrivateServiceConnectConfig(enable_private_service_connect=True))
    assert address_of(private, API, "10.0.0.7") == ("https://10.0.0.7", True, True)
    with pytest.raises(CallFailed, match="--address=HOST"):
        address_of(private, API, "")
