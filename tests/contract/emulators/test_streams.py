"""Streams of a decoupled model through the emulators, read by the platforms' SDKs as the model sends them.

Source: docs/spec/sagemaker.md section B5; docs/spec/vertex.md section A3 and section D point 7.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api import httpbody_pb2

from tests.contract.emulators.printed_requests import model_of, run_sagemaker_request, run_vertex_request
from tests.contract.emulators.sagemaker_emulator import SageMakerEmulator
from tests.contract.emulators.vertex_emulator import VertexEmulator
from tests.contract.servers.streamer import write_streamer
from tests.unit.tools.emulators.sagemaker.bidirectional_caller import Caller

pytestmark = pytest.mark.slow

STREAMER = model_of({"script": ("BYTES", -1)}, decoupled=True)
EVENTS = "text/event-stream; charset=utf-8"


def said(event: bytes) -> str:
    text: str = json.loads(event.removeprefix(b"data: "))["said"]
    return text


def speak(port: int) -> list[str]:
    """What the model says on a bidirectional stream, whose second request is sent after the answer to the first."""
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


def test_sagemaker_passes_events_on_as_they_come(
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


def test_vertex_passes_events_on_as_they_come(
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
