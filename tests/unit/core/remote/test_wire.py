"""Requests and responses as frames between a front end and the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.packed_tensors import packed_request, packed_responses
from trident.core.errors import BackendFailed, ErrorCode
from trident.core.inference.request import CloseReason, InferenceRequest, InferenceTimes, InputTensor, PackedInputs
from trident.core.inference.response import (
    InferenceResponse,
    Origin,
    OutputTensor,
    PackedOutputs,
    RegionInput,
    RegionReference,
    RegionRequest,
)
from trident.core.inference.tensors import Array, Buffer, layout_of
from trident.core.interprocess.frames import LARGE, FrameReader
from trident.core.interprocess.shared_memory import SharedMemory
from trident.core.remote import wire as wire
from trident.core.remote.wire import (
    REQUEST,
    RESPONSE,
    TO_ENGINE,
    TO_FRONT_END,
    Share,
    read_request,
    read_response,
    write_request,
    write_response,
)

MEMORY = SharedMemory.create(1 << 20)


def test_document_cache_is_bounded() -> None:
    """Clients choose names and shapes, so their number has no limit."""
    for number in range(5000):
        arrived(write_request(InferenceRequest(f"m{number}", []), 1, no_offset))
        assert len(wire._request_metas) <= 1024
    wire._request_metas.clear()
    arrived(write_request(InferenceRequest("m" * 5000, []), 1, no_offset))
    assert wire._request_metas == {}


def no_offset(content: Buffer) -> int | None:
    return None


def arrived(block: bytes) -> InferenceRequest:
    """The request of a frame."""
    ((kind, flags, shared, _, content),) = FrameReader(TO_ENGINE, "peer").feed(block)
    assert kind == REQUEST
    return read_request(content, shared, flags, MEMORY)


def as_tuple(request: InferenceRequest) -> tuple[Any, ...]:
    return (
        request.model_name,
        request.model_version,
        request.id,
        request.outputs,
        request.priority,
        request.timeout_us,
        request.parameters,
        request.correlation_id,
        request.sequence_start,
        request.sequence_end,
    )


def test_every_field_of_a_request_arrives() -> None:
    request = InferenceRequest(
        "modèle",
        [InputTensor("IN", "INT32", (2, 1), np.array([[1], [2]], np.int32))],
        model_version=3,
        id="an id \udcff",
        outputs=("A", "B"),
        priority=2,
        timeout_us=1000,
    )
    request.parameters = {"text": "x", "number": 1, "float": 0.5, "yes": True}
    request.correlation_id = "sequence"
    request.sequence_start = True
    found = arrived(write_request(request, 1, no_offset))
    assert as_tuple(found) == as_tuple(request)
    (tensor,) = found.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("IN", "INT32", (2, 1))
    assert bytes(tensor.data) == np.array([1, 2], "<i4").tobytes()
    defaults = arrived(write_request(InferenceRequest("m", []), 1, no_offset))
    assert (as_tuple(defaults), list(defaults.inputs)) == (as_tuple(InferenceRequest("m", [])), [])


def test_large_inputs_are_read_from_shared_memory() -> None:
    offsets = iter((4096, 524288))

    def put(content: Buffer) -> int:
        offset = next(offsets)
        MEMORY.view(offset, len(content))[:] = memoryview(content)
        return offset

    large = np.arange(LARGE // 4, dtype=np.int32)
    inputs = [InputTensor(name, "INT32", value.shape, value) for name, value in (("A", large), ("B", large[::-1]))]
    inputs.insert(1, InputTensor("SMALL", "INT32", (2,), np.array([7, 8], np.int32)))
    block = write_request(InferenceRequest("m", inputs), 1, put)
    assert len(block) < 1000
    found = arrived(block)
    values = [np.frombuffer(tensor.data, np.int32) for tensor in found.inputs]
    assert [tensor.name for tensor in found.inputs] == ["A", "SMALL", "B"]
    for value, sent in zip(values, (large, [7, 8], large[::-1]), strict=True):
        assert (value == sent).all()
    MEMORY.view(4096, 1)[:] = 99  # they are not copied
    assert values[0][0] == 99


@pytest.mark.parametrize("size", [2, 3, 100, LARGE])
@pytest.mark.parametrize("share", [no_offset, lambda content: 0])
def test_arrival_time_is_sent_with_inputs_of_any_kind(size: int, share: Share) -> None:
    value = np.arange(size, dtype=np.int32)
    request = InferenceRequest("m", [InputTensor("IN", "INT32", (size,), value)], id="i")
    for each in (request, packed_request([1, 2, 3], 0.5)):
        for arrived_ns in (0, 2**63):
            each.arrived_ns = arrived_ns
            assert arrived(write_request(each, 1, share)).arrived_ns == arrived_ns


def test_requests_arrive_unchanged_with_and_without_an_id() -> None:
    layouts = set()
    for number, request_id in enumerate(("", "", "an id", "")):
        request = packed_request([number, 2, 3], number / 2)
        request.id = request_id
        ((_, _, placed, got, content),) = FrameReader(TO_ENGINE, "peer").feed(write_request(request, number, no_offset))
        found = read_request(content, placed, 0, MEMORY)
        assert isinstance(found.inputs, PackedInputs)
        layouts.add(found.inputs.layout)
        assert (got, found.id, found.model_version) == (number, request_id, -1)
        assert [tensor.array.tolist() for tensor in found.inputs] == [[[number, 2, 3]], [[number / 2]]]
    assert len(layouts) == 1


@pytest.mark.parametrize("packed", [True, False])
def test_references_to_shared_memory_are_sent(packed: bool) -> None:
    place = RegionReference("größer", 2**64 - 1, 8)
    if packed:
        given = RegionRequest.of(packed_request([1, 2, 3], 4.0), {"OUT": place})
    else:
        inputs = [
            RegionInput("A", "INT32", (2,), place),
            InputTensor("B", "INT32", (1,), memoryview(b"abcd")),
            InputTensor("C", "INT8", (LARGE,), MEMORY.view(0, LARGE).data),
        ]
        given = RegionRequest.of(InferenceRequest("m", inputs, id="7"), {"OUT": place})
    found = arrived(write_request(given, 1, lambda content: 0))
    assert isinstance(found, RegionRequest)
    assert found.needs_regions
    assert as_tuple(found) == as_tuple(given)
    assert found.output_regions == {"OUT": place}
    assert [type(tensor) for tensor in found.inputs] == [type(tensor) for tensor in given.inputs]
    for tensor, expected in zip(found.inputs, given.inputs, strict=True):
        assert (tensor.name, tensor.datatype, tensor.shape) == (expected.name, expected.datatype, expected.shape)
        if isinstance(tensor, RegionInput):
            assert isinstance(expected, RegionInput)
            assert tensor.reference == expected.reference
        else:
            assert bytes(tensor.data) == bytes(expected.data)


def sent(response: InferenceResponse) -> InferenceResponse:
    block = write_response(response, 1, MEMORY)
    ((kind, flags, shared, _, content),) = FrameReader(TO_FRONT_END, "peer").feed(block)
    assert kind == RESPONSE
    return read_response(content, flags, shared, "the id", MEMORY)


def output(name: str, datatype: str, array: Array) -> OutputTensor:
    return OutputTensor(name, datatype, array.shape, array)


def test_every_field_of_a_response_arrives() -> None:
    outputs = [output("A", "INT32", np.array([[1, 2]], np.int32)), output("B", "FP64", np.array([0.5]))]
    outputs.append(output("C", "FP32", np.array(1.5, np.float32)))
    response = InferenceResponse("modèle", 3, outputs, id="not sent", parameters={"a": 1, "b": "x"}, final=False)
    found = sent(response)
    assert (found.model_name, found.model_version, found.id, found.final) == ("modèle", 3, "the id", False)
    assert found.parameters == {"a": 1, "b": "x"}
    assert found.error is None
    assert [(each.name, each.datatype, each.shape) for each in found.outputs] == [
        ("A", "INT32", (1, 2)),
        ("B", "FP64", (1,)),
        ("C", "FP32", ()),
    ]
    assert found.outputs[0].array.tolist() == [[1, 2]]
    assert found.outputs[1].array.tolist() == [0.5]
    assert sent(InferenceResponse("m", 1, [])).final


@pytest.mark.parametrize("origin", Origin)
@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_arrives_with_its_class_code_and_origin(code: ErrorCode, origin: Origin) -> None:
    error = BackendFailed("no", hint="cure", model="m", code=code)
    found = sent(InferenceResponse("m", 1, [], error=error, origin=origin, final=False))
    assert found.error is not None
    assert (type(found.error), found.error.code, found.error.message) == (BackendFailed, code, "no")
    assert (found.error.hint, found.origin, found.final) == ("cure", origin, False)


def test_times_are_sent_with_outputs_of_any_kind() -> None:
    for response in (*packed_responses(2), InferenceResponse("m", 1, [output("A", "INT32", np.zeros(1, np.int32))])):
        for times in (InferenceTimes(1, 2, 3, 4, 5, CloseReason.DELAY), None, InferenceTimes(2**60, 0, 0, 0, 1)):
            response.times = times
            found = sent(response)
            assert found.times == times
            assert [each.array.tolist() for each in found.outputs] == [each.array.tolist() for each in response.outputs]


def test_similar_responses_are_read_as_they_were_written() -> None:
    """The head of the block is written once for all similar responses."""
    for name, array, parameters in (
        ("A", np.arange(3), None),
        ("A", np.arange(4), None),
        ("B", np.arange(4), None),
        ("A", np.arange(3), {"p": 1}),
        ("A", np.arange(3), {"p": 2}),
        ("A", np.arange(3)[::-1].copy(), None),
    ):
        response = InferenceResponse("m", 1, [output(name, "INT64", array)], parameters=parameters)
        packed = PackedOutputs(layout_of([(name, "INT64", array.shape, array.nbytes)]), memoryview(array.tobytes()))
        for final, outputs in ((True, response.outputs), (False, response.outputs), (True, packed), (False, packed)):
            response.final, response.outputs = final, outputs
            found = sent(response)
            assert (found.outputs[0].name, found.parameters, found.final) == (name, parameters, final)
            assert (found.outputs[0].array == array).all()
