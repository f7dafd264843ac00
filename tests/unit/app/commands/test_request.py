"""`trident request`: a request to a model that a server of Triton's protocol describes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trident.adapters.common.options import BadOption
from trident.app.commands.overview import Answer, NoAnswer
from trident.app.commands.request import request

# As Triton gives it, with a field that is not known here.
CONFIG = {
    "name": "m",
    "platform": "onnxruntime_onnx",
    "max_batch_size": 8,
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": ["-1", 4]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}],
    "of_a_later_version": {},
}


def answering(status: int, document: Any, url: str) -> Any:
    def ask(method: str, asked: str) -> Answer:
        assert (method, asked) == ("GET", url)
        return Answer(status, json.dumps(document).encode(), {}, 0.0)

    return ask


def test_a_request_is_made_from_the_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "a secret")
    server = answering(200, CONFIG, "http://h:9/p/v2/models/m/versions/3/config")
    options = ["--form=grpc", "--shape=IN:2,7,4", "--model-version=3"]
    assert request(["m", "http://h:9/p/", *options], server) == 0
    text = capsys.readouterr().out
    assert 'triton.InferInput("IN", [2, 7, 4], "FP32")' in text
    assert 'InferenceServerClient("h:8001")' in text
    assert 'model_version="3", headers={"authorization": "Bearer " + os.environ["TOKEN"]}' in text
    assert "secret" not in text


def test_what_is_missing_is_said() -> None:
    def absent(method: str, url: str) -> Answer:
        raise NoAnswer("refused")

    for arguments, server, text in (
        ([], absent, "a model is missing"),
        (["m"], absent, "no answer from http://localhost:8000: refused"),
        (["m"], answering(404, {"error": "unknown"}, "http://localhost:8000/v2/models/m/config"), "HTTP 404: unknown"),
        (["m"], answering(200, [], "http://localhost:8000/v2/models/m/config"), "no model configuration"),
    ):
        with pytest.raises(BadOption, match=text):
            request(arguments, server)
