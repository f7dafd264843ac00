"""An inference request as a frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from tests.unit.packed_tensors import packed_request
from trident.core.inference.request import InferenceRequest, InputTensor, PackedInputs
from trident.core.inference.response import RegionInput, RegionReference, RegionRequest
from trident.core.inference.tensors import BY_NAME, Buffer, pack_bytes
from trident.core.interprocess.frames import HEADER, LARGE, BadFrame, FrameReader, frame
from trident.core.remote.infer_frames import RequestReader, RequestWriter, Share
from trident.core.remote.wire import REQUEST, TIMED, TO_ENGINE, block_head

SHARED = bytearray(1 << 20)


def view_of(offset: int, size: int) -> memoryview:
    if not 0 <= offset <= offset + size <= len(SHARED):
        raise BadFrame("outside")
    return memoryview(SHARED)[offset : offset + size]


def no_offset(content: Buffer) -> int | None:
    return None


def read(block: bytes, reader: RequestReader | None = None) -> InferenceRequest:
    ((kind, flags, shared, _, content),) = FrameReader(TO_ENGINE, "peer").feed(block)
    assert kind == REQUEST
    return (reader or RequestReader(view_of)).read(content, shared, flags)


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


def test_every_field_arrives() -> None:
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
    found = read(RequestWriter().write(request, 1, no_offset))
    assert as_tuple(found) == as_tuple(request)
    (tensor,) = found.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("IN", "INT32", (2, 1))
    assert bytes(tensor.data) == np.array([1, 2], "<i4").tobytes()


def test_defaults_arrive_as_defaults() -> None:
    found = read(RequestWriter().write(InferenceRequest("m", []), 1, no_offset))
    assert as_tuple(found) == as_tuple(InferenceRequest("m", []))
    assert list(found.inputs) == []


@pytest.mark.parametrize(
    ("datatype", "elements"),
    [*((name, 5000) for name in BY_NAME if name != "BYTES"), *(("FP32", count) for count in (0, 1, 5, 20_000))],
)
def test_arrays_of_every_datatype_arrive(datatype: str, elements: int) -> None:
    array = np.arange(elements).astype(BY_NAME[datatype].dtype)
    for content in (array, array.tobytes(), array[::-1][::-1]):
        given = memoryview(content) if isinstance(content, bytes) else content
        request = InferenceRequest("m", [InputTensor("IN", datatype, (elements,), given)])
        assert bytes(read(RequestWriter().write(request, 1, no_offset)).inputs[0].data) == array.tobytes()


def test_elements_of_bytes_arrive() -> None:
    elements = [b"", b"a", b"\0\xff", "ü".encode()]
    array = np.empty(4, object)
    array[:] = elements
    request = InferenceRequest("m", [InputTensor("IN", "BYTES", (4,), array)])
    assert bytes(read(RequestWriter().write(request, 1, no_offset)).inputs[0].data) == pack_bytes(elements)


def test_large_inputs_are_read_from_shared_memory() -> None:
    offsets = iter((4096, 524288))

    def put(content: Buffer) -> int:
        offset = next(offsets)
        SHARED[offset : offset + len(content)] = content
        return offset

    large = np.arange(LARGE // 4, dtype=np.int32)
    inputs = [InputTensor(name, "INT32", value.shape, value) for name, value in (("A", large), ("B", large[::-1]))]
    inputs.insert(1, InputTensor("SMALL", "INT32", (2,), np.array([7, 8], np.int32)))
    block = RequestWriter().write(InferenceRequest("m", inputs), 1, put)
    assert len(block) < 1000
    found = read(block)
    values = [np.frombuffer(tensor.data, np.int32) for tensor in found.inputs]
    assert [tensor.name for tensor in found.inputs] == ["A", "SMALL", "B"]
    for value, sent in zip(values, (large, [7, 8], large[::-1]), strict=True):
        assert (value == sent).all()
    SHARED[4096] = 99  # they are not copied
    assert values[0][0] == 99


def test_inputs_just_below_the_limit_are_in_the_frame() -> None:
    value = np.zeros(LARGE - 1, np.uint8)
    asked: list[Buffer] = []
    block = RequestWriter().write(
        InferenceRequest("m", [InputTensor("IN", "UINT8", value.shape, value)]),
        1,
        asked.append,  # type: ignore[arg-type]
    )
    assert asked == []
    assert len(block) > LARGE


def test_each_request_has_its_own_parameters() -> None:
    request = InferenceRequest("m", [])
    request.parameters = {"a": 1}
    reader = RequestReader(view_of)
    first, second = (read(RequestWriter().write(request, number, no_offset), reader) for number in (1, 2))
    assert first.parameters is not None
    first.parameters["b"] = 2
    assert second.parameters == {"a": 1}


GOOD: list[Any] = ["m", -1, [], 0, 0, 0, False, False, None, [["IN", "INT32", [2], 8, False]], None]


def with_entry(index: int, value: Any) -> list[Any]:
    return [*GOOD[:index], value, *GOOD[index + 1 :]]


@pytest.mark.parametrize(
    "meta",
    [
        None,
        [],
        {},
        GOOD[:-1],
        [*GOOD, 1],
        with_entry(0, 1),
        with_entry(1, "1"),
        with_entry(1, 1.5),
        with_entry(1, None),
        with_entry(2, 5),
        with_entry(3, True),
        with_entry(4, "x"),
        with_entry(5, None),
        with_entry(5, [1]),
        with_entry(8, []),
        with_entry(9, None),
        with_entry(9, [[]]),
        with_entry(9, [["IN", "INT32", [2], 8]]),
        with_entry(9, [[1, "INT32", [2], 8, False]]),
        with_entry(9, [["IN", 5, [2], 8, False]]),
        with_entry(9, [["IN", ["INT32"], [2], 8, False]]),
        with_entry(9, [["IN", "INT32", 2, 8, False]]),
        with_entry(9, [["IN", "INT32", ["2"], 8, False]]),
        with_entry(9, [["IN", "INT32", [True], 8, False]]),
        with_entry(9, [["IN", "INT32", [2], -8, False]]),
        with_entry(9, [["IN", "INT32", [2], "8", False]]),
        with_entry(9, [["IN", "INT32", [2], 8.0, False]]),
        with_entry(9, [["IN", "INT32", [2], 8, 0]]),
        with_entry(9, [["IN", "INT32", [2], 24, False]]),
        with_entry(9, [["IN", "INT32", [2], 2**62, False]]),
        with_entry(9, [["IN", "INT32", [2], 8, True]]),
        with_entry(9, [["IN", "INT32", [2], 8, False]] * 3),
    ],
)
def test_reading_refuses_malformed_requests(meta: Any) -> None:
    block = frame(REQUEST, 1, (block_head(orjson.dumps(meta)), *[bytes(16)]))
    with pytest.raises(BadFrame):
        read(block)
    read(frame(REQUEST, 1, (block_head(orjson.dumps(GOOD)), *[bytes(16)])))


@pytest.mark.parametrize("offsets", [(), (0, 1), (2**63,), (len(SHARED) - 4,)])
def test_reading_refuses_invalid_offsets(offsets: tuple[int, ...]) -> None:
    meta = orjson.dumps(with_entry(9, [["IN", "INT32", [2], 8, True]]))
    with pytest.raises(BadFrame):
        read(frame(REQUEST, 1, (block_head(meta, b"", offsets),), shared=len(offsets)))
    with pytest.raises(BadFrame):
        read(frame(REQUEST, 1, (block_head(orjson.dumps(GOOD), b"", (0,)), *[bytes(16)]), shared=1))


@pytest.mark.parametrize("size", [2, 3, 100, LARGE])
@pytest.mark.parametrize("share", [no_offset, lambda content: 0])
def test_the_moment_of_arrival_arrives_whatever_the_inputs_are(size: int, share: Share) -> None:
    value = np.arange(size, dtype=np.int32)
    request = InferenceRequest("m", [InputTensor("IN", "INT32", (size,), value)], id="i")
    for each in (request, packed_request([1, 2, 3], 0.5)):
        for arrived_ns in (0, 2**63):
            each.arrived_ns = arrived_ns
            assert read(RequestWriter().write(each, 1, share)).arrived_ns == arrived_ns


def test_reading_refuses_a_timed_request_without_its_moment() -> None:
    meta = orjson.dumps(with_entry(9, [["IN", "INT32", [4], 16, False]]))
    with pytest.raises(BadFrame, match="shorter"):
        read(frame(REQUEST, 1, (block_head(meta), *[bytes(16)]), flags=TIMED))


def test_reading_refuses_every_truncation() -> None:
    value = np.arange(100, dtype=np.int32)
    whole = RequestWriter().write(
        InferenceRequest("m", [InputTensor("IN", "INT32", (100,), value)], id="i"), 1, no_offset
    )
    content = memoryview(whole)[HEADER.size :]
    for size in range(0, len(content) - 16, 16):
        with pytest.raises(BadFrame):
            RequestReader(view_of).read(content[:size], 0)


def test_requests_arrive_unchanged_with_and_without_an_id() -> None:
    writer, reader = RequestWriter(), RequestReader(lambda offset, size: memoryview(b""))
    layouts = set()
    for number, request_id in enumerate(("", "", "an id", "")):
        request = packed_request([number, 2, 3], number / 2)
        request.id = request_id
        ((_, _, placed, got, content),) = FrameReader(TO_ENGINE, "peer").feed(writer.write(request, number, no_offset))
        found = reader.read(content, placed)
        assert isinstance(found.inputs, PackedInputs)
        layouts.add(found.inputs.layout)
        assert (got, found.id, found.model_version) == (number, request_id, -1)
        assert [tensor.array.tolist() for tensor in found.inputs] == [[[number, 2, 3]], [[number / 2]]]
    assert len(layouts) == 1


def test_the_options_of_a_request_arrive() -> None:
    writer, reader = RequestWriter(), RequestReader(lambda offset, size: memoryview(b""))
    plain = packed_request([1, 2, 3], 0.5)
    special = packed_request([1, 2, 3], 0.5)
    special.parameters, special.correlation_id, special.sequence_end = {"p": 1}, 7, True
    other = packed_request([1, 2, 3], 0.5)
    other.priority, other.outputs, other.timeout_us = 2, ("A",), 9
    seen = []
    for request in (plain, special, other, plain):
        ((_, _, placed, _, content),) = FrameReader(TO_ENGINE, "peer").feed(writer.write(request, 1, no_offset))
        found = reader.read(content, placed)
        seen.append(
            (
                found.parameters,
                found.correlation_id,
                found.sequence_end,
                found.priority,
                found.outputs,
                found.timeout_us,
            )
        )
    assert seen == [
        (None, 0, False, 0, (), 0),
        ({"p": 1}, 7, True, 0, (), 0),
        (None, 0, False, 2, ("A",), 9),
        (None, 0, False, 0, (), 0),
    ]


@pytest.mark.parametrize("packed", [True, False])
def test_places_in_shared_memory_arrive(packed: bool) -> None:
    place = RegionReference("größer", 2**64 - 1, 8)
    if packed:
        given = RegionRequest.of(packed_request([1, 2, 3], 4.0), {"OUT": place})
    else:
        inputs = [
            RegionInput("A", "INT32", (2,), place),
            InputTensor("B", "INT32", (1,), memoryview(b"abcd")),
            InputTensor("C", "INT8", (LARGE,), memoryview(SHARED)[:LARGE]),
        ]
        given = RegionRequest.of(InferenceRequest("m", inputs, id="7"), {"OUT": place})
    found = read(RequestWriter().write(given, 1, lambda content: 0))
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


@pytest.mark.parametrize(
    "places",
    [
        ([["r", 0, 1], None], {}),
        ([["r", 0]], {}),
        ([[1, 0, 1]], {}),
        ([["r", -1, 1]], {}),
        ([["r", 0, True]], {}),
        ([None], {"OUT": ["r", 0, "1"]}),
        ([None], []),
        ([None],),
    ],
)
def test_wrong_places_in_shared_memory_are_refused(places: tuple[Any, ...]) -> None:
    meta = ["m", -1, [], 0, 0, 0, False, False, None, [["A", "INT32", [1], 0, False]], None, *places]
    with pytest.raises(BadFrame):
        read(frame(REQUEST, 1, (block_head(orjson.dumps(meta)),)))
