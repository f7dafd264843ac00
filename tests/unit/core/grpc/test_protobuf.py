"""Protobuf's wire format, and the messages of Triton's service."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStatistics

from tests.project import ROOT
from trident.core.errors import ErrorCode
from trident.core.grpc.protobuf import integer_field, packed_integers, parse, read_length, string_field, varint
from trident.core.grpc.status import MalformedMessage


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**31 - 1, 2**35 - 1])
def test_a_length_is_read_as_it_was_written(number: int) -> None:
    content = b"x" + varint(number)
    assert read_length(content, 1) == (number, len(content))


def test_a_length_that_is_too_long_or_cut_off_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than any message"):
        read_length(b"\x80\x80\x80\x80\x80\x01", 0)
    with pytest.raises(IndexError):
        read_length(b"\x80\x80", 0)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**63, 2**64 - 1])
def test_integers_are_written_as_protobuf_does(number: int) -> None:
    assert integer_field(5, number) == ModelStatistics(execution_count=number).SerializeToString()


@pytest.mark.parametrize("shape", [(), (0,), (-1, 16), (2**63 - 1, 300)])
def test_packed_integers_are_written_as_protobuf_does(shape: tuple[int, ...]) -> None:
    assert packed_integers(3, shape) == ModelInferRequest.InferInputTensor(shape=shape).SerializeToString()


@pytest.mark.parametrize("text", ["", "a", "ä" * 70])
def test_strings_are_written_as_protobuf_does(text: str) -> None:
    assert string_field(1, text) == ModelInferRequest.InferInputTensor(name=text).SerializeToString()


def test_a_message_is_read_from_any_buffer() -> None:
    for content in (b"\x0a\x01m", bytearray(b"\x0a\x01m"), memoryview(b"\x0a\x01m")):
        assert parse("ModelReadyRequest", content).name == "m"
    assert ModelInferRequest.InferInputTensor.FromString(string_field(1, "a\udcff")).name == "a?"
    with pytest.raises(MalformedMessage, match="Unable to parse request") as refusal:
        parse("ModelReadyRequest", b"\x0a\x05m")
    assert refusal.value.code is ErrorCode.INTERNAL


SCRIPT = """
import sys
import trident.core.grpc.request, trident.core.grpc.response
import trident.core.grpc.application
print("google.protobuf" in sys.modules)
from trident.core.grpc.schema import service
print("grpc" in sys.modules, "tritonclient.grpc" in sys.modules)
from tritonclient.grpc.service_pb2 import ModelInferRequest as theirs
print(service.ModelInferRequest is theirs)
"""
THE_OTHER_WAY_ROUND = """
from tritonclient.grpc.service_pb2 import ModelInferRequest as theirs
from trident.core.grpc.schema import service
print(service.ModelInferRequest is theirs)
"""


def output_of(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_protobuf_is_imported_once_and_grpc_never() -> None:
    assert output_of(SCRIPT) == ["False", "False", "False", "True"]
    assert output_of(THE_OTHER_WAY_ROUND) == ["True"]
