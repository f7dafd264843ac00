"""The WebSockets of docs/streams.md, to a server of deploy/examples, and the end of a sequence on a real server.

Source: docs/spec/streams.md section 3.
"""

from __future__ import annotations

import json
import shutil
import struct
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from websockets.sync.client import connect

from deploy import build_voice_detector, detect_voice
from tests.contract.docs.test_pages import Example, assert_answers, examples
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.unit.onnx_models import build, tensor

EXAMPLES = examples((ROOT / "docs" / "streams.md").read_text().partition("## WebSocket")[2])
LIMIT_S = 60

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]


def loudness() -> onnx.ModelProto:
    """Stands in for the network of the voice detector: all loud sound is speech."""
    nodes = [
        helper.make_node("Abs", ["input"], ["strength"]),
        helper.make_node("ReduceMax", ["strength"], ["output"], keepdims=1),
        helper.make_node("Identity", ["state"], ["stateN"]),
    ]
    state, next_state = (tensor(name, "FP32", [2, 1, 128]) for name in ("state", "stateN"))
    return build(nodes, [tensor("input", "FP32", [1, 576]), state], [tensor("output", "FP32", [1, 1]), next_state])


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("streams")
    for name in ("stream_words", "running_mean"):
        shutil.copytree(ROOT / "deploy" / "examples" / name, folder / "models" / name)
    shutil.copytree(ROOT / "deploy" / "examples" / "running_mean", folder / "models" / "one_slot")
    config = folder / "models" / "one_slot" / "config.pbtxt"
    text = config.read_text().replace('"running_mean"', '"one_slot"')
    config.write_text(text.replace("max_candidate_sequences: 1024", "max_candidate_sequences: 1"))
    build_voice_detector.build(folder / "models", loudness())
    with ServerProcess(folder / "models", folder / "log", "--shutdown-grace-secs=0") as running:
        yield running


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_example_answers_as_written(example: Example, server: ServerProcess) -> None:
    assert_answers(example, server)


def test_end_of_a_stream_frees_its_sequence_slot(server: ServerProcess) -> None:
    address = f"ws://{server.address}/v2/models/one_slot/stream?binary=chunk"
    with connect(address) as second:
        with connect(address) as first:
            first.send(struct.pack("<f", 4))
            assert json.loads(first.recv(LIMIT_S))["outputs"][0]["data"] == [4]
            second.send(struct.pack("<f", 6))
        # One minute before the sequence of the first would be idle for too long.
        assert json.loads(second.recv(LIMIT_S / 2))["outputs"][0]["data"] == [6]


def value(*numbers: float, end: bool = False) -> str:
    """The model takes one number."""
    tensor = {"name": "value", "datatype": "FP32", "shape": [1, len(numbers)], "data": numbers}
    return json.dumps({"inputs": [tensor], "parameters": {"sequence_end": True} if end else {}})


def test_a_refused_message_neither_begins_nor_ends_the_sequence(server: ServerProcess) -> None:
    """The model has one slot, and a sequence may be idle for a minute."""
    together: list[tuple[list[str], list[float | None]]] = [
        ([value(1, 2), "[", value(4), value(1, 2), value(6)], [None, None, 4, None, 5]),
        ([value(1, 2, end=True)], [None]),
        ([value(2, end=True)], [4]),
        ([value(5), value(1, 2, end=True)], [5, None]),
        ([value(8)], [6.5]),
        ([value(1, 2)], [None]),
    ]
    for _ in range(2):
        with connect(f"ws://{server.address}/v2/models/one_slot/stream") as stream:
            for messages, expected in together:
                for message in messages:
                    stream.send(message)
                answers = [json.loads(stream.recv(LIMIT_S / 2)) for _ in messages]
                found = [answer["outputs"][0]["data"][0] if "outputs" in answer else None for answer in answers]
                assert found == expected


def test_voice_detector_reports_start_and_end_of_speech(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = np.ones(detect_voice.RATE, "<i2")
    with wave.open(str(tmp_path / "speech.wav"), "wb") as file:
        file.setparams((1, 2, detect_voice.RATE, 0, "NONE", ""))
        file.writeframes(np.concatenate([0 * second, 20000 * second, 0 * second]).tobytes())
    for _ in range(2):  # the second stream begins another sequence
        detect_voice.main(
            str(tmp_path / "speech.wav"), f"ws://{server.address}/v2/models/voice_detector/stream?binary=chunk"
        )
    assert capsys.readouterr().out == 2 * "  0.99 s  speech begins\n  2.02 s  speech ends\n"


def test_a_stop_closes_the_streams(http_workers: str, server: ServerProcess) -> None:
    with connect(f"ws://{server.address}/v2/models/running_mean/stream") as stream:
        assert server.stop() == 0
        for _ in stream:
            pytest.fail("nothing was asked")
        assert stream.close_code == 1001
