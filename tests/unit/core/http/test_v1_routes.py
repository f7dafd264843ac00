"""The v1 protocol of KServe and TensorFlow Serving beside OpenAI's routes of the same name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor


@pytest.fixture
def client() -> Client:
    return Client(V2Application(FakeEngine(_twice), HttpOptions(), ThreadBridge()))


def _twice(request: InferenceRequest) -> InferenceResponse:
    array = np.asarray(request.inputs[0].data) * 2
    return InferenceResponse("simple", 3, [OutputTensor("OUT", "INT32", array.shape, array)])


@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded", None])
@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("simple:predict", '{"instances": [[1, 2]]}', {"predictions": [[2, 4]]}),
        ("simple:predict", '{"instances": [{"IN": [1, 2]}]}', {"predictions": [[2, 4]]}),
        ("simple/versions/3:predict", '{"instances": [[1, 2]]}', {"predictions": [[2, 4]]}),
        ("simple:predict", '{"inputs": {"IN": [1, 2]}}', {"outputs": [2, 4]}),
    ],
)
def test_predict_has_a_prediction_for_each_instance(
    client: Client, path: str, body: str, answer: dict[str, Any], content_type: str | None
) -> None:
    response = client.post(f"/v1/models/{path}", data=body, content_type=content_type)
    assert (response.status_code, response.json) == (200, answer)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the body is empty"),
        ('{"instances": []}', "there are no instances: expected at least one"),
        ('{"data": [1]}', "expected a JSON object with 'instances', or an array of instances"),
    ],
)
def test_wrong_body_is_refused(client: Client, body: str, message: str) -> None:
    response = client.post("/v1/models/simple:predict", data=body)
    assert response.status_code == 400
    assert response.json is not None
    assert response.json["error"].startswith(message)


def test_model_has_the_members_of_both_protocols(client: Client) -> None:
    model = client.get("/v1/models/simple").json
    assert model is not None
    assert (model["id"], model["object"]) == ("simple", "model")
    assert (model["name"], model["ready"]) == ("simple", True)
    assert client.get("/v1/models/simple:predict").status_code == 405
