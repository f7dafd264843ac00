"""Whatever the bytes of a request are, it is read as protobuf reads it.

A message with a field that its type does not have is read by protobuf as a whole, so it shows what is right. The
decoder is the same for all examples: it knows the heads of earlier ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest

from tests.unit.core.grpc.codec_messages import infer_message
from tests.unit.fake_engine import FakeEngine
from tests.unit.pending_requests import FIELDS
from trident.core.errors import ServerError
from trident.core.grpc.request import MessageDecoder, request_id
from trident.core.inference.request import InferenceRequest

names = st.sampled_from(["", "simple", "INPUT0", "a" * 130, "ä", "nope"])
sizes = st.integers(0, 300)
parameters = st.dictionaries(
    st.sampled_from(["mine", "priority", "sequence_id", "timeout", "shared_memory_region", "triton_x"]),
    st.sampled_from(
        [
            {"int64_param": -1},
            {"string_param": "s"},
            {"bool_param": False},
            {"double_param": 0.5},
            {"uint64_param": 7},
            {},
        ]
    ),
    max_size=2,
)
contents = st.one_of(
    st.builds(lambda values: {"int_contents": values}, st.lists(st.integers(-5, 500), max_size=4)),
    st.builds(lambda values: {"fp32_contents": values}, st.lists(st.floats(width=32), max_size=4)),
    st.builds(lambda values: {"bytes_contents": values}, st.lists(st.binary(max_size=3), max_size=3)),
)
inputs = st.fixed_dictionaries(
    {"name": names, "datatype": st.sampled_from(["INT32", "FP32", "BYTES", "INT8", "FP16", "odd"])},
    optional={
        "shape": st.lists(st.sampled_from([-1, 0, 1, 16, 2**40]), max_size=4),
        "parameters": parameters,
        "contents": contents,
    },
)
messages = st.builds(
    lambda **fields: ModelInferRequest(**fields),
    model_name=st.sampled_from(["simple", "simple", "simple", "nope", ""]),
    model_version=st.sampled_from(["", "", "1", "x"]),
    id=st.sampled_from(["", "1", "i" * 127, "i" * 128, "ä"]),
    parameters=st.one_of(st.just({}), parameters),
    inputs=st.lists(inputs, max_size=3),
    outputs=st.lists(st.fixed_dictionaries({"name": names}, optional={"parameters": parameters}), max_size=2),
    raw_input_contents=st.lists(st.builds(bytes, sizes), max_size=4),
)

UNKNOWN_FIELD = b"\x50\x01"
DECODER = MessageDecoder(FakeEngine().model)


def described(request: InferenceRequest) -> dict[str, Any]:
    fields = {field: getattr(request, field) for field in FIELDS if field != "inputs"}
    tensors = []
    for tensor in request.inputs:
        content = tensor.data
        if isinstance(content, np.ndarray):
            content = repr(content.tolist()).encode() + content.dtype.name.encode()
        tensors.append((tensor.name, tensor.datatype, tensor.shape, bytes(content)))
    return fields | {"inputs": tensors}


def outcome(content: bytes) -> object:
    try:
        decoded = DECODER.decode(content, stream=True)
        model, request, plan = decoded.model, decoded.request, decoded.plan
    except ServerError as error:
        return type(error), error.message
    form = plan.binary, plan.outputs, plan.placed, plan.model_version, plan.empty_final
    return model.spec.version, described(request), form


def expected(content: bytes) -> object:
    try:
        ModelInferRequest.FromString(content)
    except DecodeError:
        return outcome(b"\xff")
    return outcome(content + UNKNOWN_FIELD)


@pytest.mark.slow
@given(messages)
@settings(max_examples=300)
def test_a_message_is_read_as_protobuf_reads_it(message: Any) -> None:
    content = message.SerializeToString()
    wanted = expected(content)
    assert outcome(content) == wanted
    assert outcome(content) == wanted
    assert request_id(content) == message.id
    # The same request with another id and other tensors.
    message.id = "another"
    for index, raw in enumerate(message.raw_input_contents):
        message.raw_input_contents[index] = b"\7" * len(raw)
    content = message.SerializeToString()
    assert outcome(content) == expected(content)


@given(st.lists(messages, min_size=2, max_size=3))
@settings(max_examples=100)
def test_fields_that_are_repeated_or_in_another_order_are_read_as_protobuf_reads_them(parts: list[Any]) -> None:
    content = b"".join([part.SerializeToString() for part in parts])
    assert outcome(content) == expected(content)


@pytest.mark.slow
@given(messages, st.data())
@settings(max_examples=500)
def test_damaged_bytes_are_read_as_protobuf_reads_them(message: Any, data: st.DataObject) -> None:
    content = bytearray(message.SerializeToString())
    outcome(bytes(content))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(start + 3, len(content))))
        content[start:end] = data.draw(
            st.sampled_from([b"", b"\0", b"\x1a", b"\x3a", b"\x7f", b"\x80", b"\xff", b"\x80\x80\x80\x80\x10", b"\x0b"])
            | st.binary(max_size=4)
        )
    assert outcome(bytes(content)) == expected(bytes(content))


@given(st.binary(max_size=60))
@example(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
@example(b"\x3a\x80\x80\x80\x80\x08")
@example(b"\x2a" * 200)
@example(b"\x0b" * 200)
@example(b"\x1a\x01a\x1a\x01b")
@example(b"\x3a\x82\x00ab")
@example(b"\xba\x00\x02ab")
def test_any_bytes_are_read_as_protobuf_reads_them(content: bytes) -> None:
    assert outcome(content) == expected(content)


def test_every_truncation_and_every_damaged_byte_of_a_request() -> None:
    whole = infer_message(id="r", model_version="1").SerializeToString()
    outcome(whole)
    for end in range(len(whole)):
        assert outcome(whole[:end]) == expected(whole[:end])
    for at in range(len(whole)):
        for value in (0, whole[at] ^ 1, whole[at] ^ 128, 255):
            damaged = whole[:at] + bytes((value,)) + whole[at + 1 :]
            assert outcome(damaged) == expected(damaged)
