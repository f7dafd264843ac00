"""Streams of a decoupled model through the emulators, read by the platforms' SDKs as the model sends them.

Source: docs/spec/sagemaker.md section B5; docs/spec/vertex.md section A3 and section D point 7.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from botocore.credentials import Credentials
from google.api import httpbody_pb2

from deploy.sagemaker.smoke import bearer_token
from tests.contract.emulators.printed_requests import model_of, run_sagemaker_request, run_vertex_request
from tests.contract.emulators.sagemaker_emulator import SageMakerEmulator
from tests.contract.emulators.vertex_emulator import VertexEmulator
from tests.contract.servers.streamer import write_streamer
from tests.unit.deploy.sagemaker.sagemaker_command import run
from tests.unit.tools.emulators.sagemaker.bidirectional_caller import Caller

pytestmark = pytest.mark.slow

STREAMER = model_of({"script": ("BYTES", -1)}, decoupled=True)
EVENTS = "text/event-stream; charset=utf-8"


def said(event: bytes) -> str:
    text: str = json.loads(event.removeprefix(b"data: "))["said"]
    return text


def speak(port: int) -> list[str]:
    """Responses on a bidirectional stream, whose second request is sent after the answer to the first."""
    heard = []
    with contextlib.closing(Caller(port)) as caller:
        assert caller.status() == 200
        events = caller.events()
        for word in ("one", "two"):
            script = {"name": "script", "datatype": "BYTES", "shape": [1], "data": [f"say {word}"]}
            caller.send(json.dumps({"inputs": [script]}).encode(), DataType="UTF8")
            for _, payload in events:
                answer = json.loads(payload)
                heard += [text for output in answer["outputs"] for text in output["data"]]
                if answer["parameters"]["triton_final_response"]:
                    break
        caller.end()
        assert list(events) == []
    return heard


def test_sagemaker_forwards_events_immediately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = tmp_path / "flag"
    script = ["say first", f"wait {flag}", "count 100", "fail broken"]
    model, kind = write_streamer(tmp_path / "model"), "--env=SAGEMAKER_TRITON_INFERENCE_TYPE=generate_stream"
    with SageMakerEmulator(tmp_path / "log", model, kind) as emulator:
        answer = emulator.client.invoke_endpoint_with_response_stream(
            EndpointName="any", ContentType="application/json", Body=json.dumps({"script": script})
        )
        assert answer["ContentType"] == EVENTS
        with contextlib.closing(answer["Body"]) as body:
            parts: Iterator[bytes] = (event["PayloadPart"]["Bytes"] for event in body)
            assert said(next(parts)) == "first"
            flag.touch()
            events = b"".join(parts).split(b"\n\n")
        assert [said(event) for event in events[:100]] == [str(number) for number in range(100)]
        assert events[100:] == [b'data: {"error":"broken"}', b""]
        said_back = speak(int(emulator.client.meta.endpoint_url.rpartition(":")[2]))
        assert said_back == ["one", "two"]
        run_sagemaker_request(emulator, STREAMER, monkeypatch)
        assert '"said":"text"' in capsys.readouterr().out
        emulator.end()
        assert emulator.breaches() == []


def test_openai_clients_chat_with_an_inference_component(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    component = {"Specification": {"ComputeResourceRequirements": {"MinMemoryRequiredInMb": 128}}}
    settings.write_text(json.dumps({"CreateInferenceComponent": component}))
    model = write_streamer(tmp_path / "model")
    with (model / "streamer" / "config.pbtxt").open("a") as config:
        config.write('parameters { key: "chat_template" value { string_value: "count {{ messages[0].content }}" } }\n')
    shutil.copytree(model / "streamer", model / "other")
    options = (
        f"--settings={settings}",
        "--env=SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=streamer",
        "--env=SAGEMAKER_TRITON_ADDITIONAL_ARGS=--load-model=other",
    )
    with SageMakerEmulator(tmp_path / "log", model, *options) as emulator:
        endpoint = f"{emulator.client.meta.endpoint_url}/endpoints/any"
        address = f"{endpoint}/inference-components/model/openai/v1"

        def client(token: str, base_url: str = address) -> openai.OpenAI:
            return openai.OpenAI(base_url=base_url, api_key=token, max_retries=0)

        identity = Credentials("any", "any")
        with client(bearer_token(identity, "us-east-1")) as caller:
            chat = [{"role": "user", "content": "3"}]
            whole = caller.chat.completions.create(model="", messages=chat)
            assert (whole.model, whole.choices[0].message.content) == ("streamer", "012")
            chunks: Any = caller.chat.completions.create(model="", messages=chat, stream=True)
            with chunks:
                assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "012"
            with pytest.raises(openai.BadRequestError) as refused:
                caller.chat.completions.create(model="", messages=[])
            assert refused.value.code == "model_error"
            assert refused.value.body["message"].startswith("Received client error (400) from primary with message")
            with pytest.raises(openai.NotFoundError):  # the platform passes on chats alone
                caller.embeddings.create(model="", input="a text")
        for token in ("any", bearer_token(identity, "us-east-1", lasts_s=-1)):
            with client(token) as stranger, pytest.raises(openai.PermissionDeniedError):
                stranger.chat.completions.create(model="", messages=chat)
        smoke = (
            "smoke",
            "any",
            "--chat=3",
            f"--endpoint-url={emulator.client.meta.endpoint_url.removeprefix('http://')}",
        )
        result = run(*smoke, "--component=model")
        assert (result.status, result.out.partition(",")[0]) == (0, "chat: '012'"), result.errors
        assert '"code":"validation_error"' in run(*smoke).errors  # the endpoint has components
        emulator.end()
        assert emulator.breaches() == []


def test_vertex_forwards_events_immediately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = tmp_path / "flag"
    script = ["say first", f"wait {flag}", "say second"]
    with VertexEmulator(tmp_path, write_streamer(tmp_path / "model"), "--port=0") as emulator:
        endpoint = emulator.sdk_endpoint()
        body = json.dumps({"script": script, "stream": True}).encode()
        lines = endpoint.stream_raw_predict(body=body, headers={"Content-Type": "application/json"})
        events = (line for line in lines if line)
        assert said(next(events)) == "first"
        flag.touch()
        assert [said(event) for event in events] == ["second"]

        predicted = {"instances": [{"script": script[:1]}], "parameters": {"stream": True}}
        request: Any = {
            "endpoint": emulator.endpoint,
            "http_body": httpbody_pb2.HttpBody(data=json.dumps(predicted).encode(), content_type="application/json"),
        }
        parts = [part.data for part in emulator.client().stream_raw_predict(request=request)]
        assert b"".join(parts) == b'data: {"predictions":[["first"]]}\n\n'
        run_vertex_request(emulator, STREAMER, monkeypatch)
        assert '"said":"text"' in capsys.readouterr().out
        assert emulator.end() == 0
