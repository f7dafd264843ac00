"""An inference response as a frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from tests.unit.packed_tensors import packed_responses
from trident.core.errors import DeadlineExceeded, ErrorCode
from trident.core.inference.request import CloseReason, InferenceTimes
from trident.core.inference.response import InferenceResponse, OutputTensor, PackedOutputs
from trident.core.inference.tensors import BY_NAME, Array, Buffer
from trident.core.interprocess.frames import LARGE, BadFrame, FrameReader, frame
from trident.core.remote.infer_frames import ResponseReader, ResponseWriter, failed_response
from trident.core.remote.wire import FINAL, RESPONSE, TO_FRONT_END, block_head

SHARED = np.zeros(1 << 20, np.uint8)


def view_of(offset: int, size: int) -> memoryview:
    return SHARED[offset : offset + size].data


def no_offset(content: Buffer) -> int | None:
    return None


def read(block: bytes, reader: ResponseReader | None = None) -> InferenceResponse:
    ((kind, flags, shared, _, content),) = FrameReader(TO_FRONT_END, "peer").feed(block)
    assert kind == RESPONSE
    return (reader or ResponseReader(view_of)).read(content, flags, shared, "the id")


def sent(response: InferenceResponse) -> InferenceResponse:
    return read(ResponseWriter(no_offset).write(response, 1))


def output(name: str, datatype: str, array: Array) -> OutputTensor:
    return OutputTensor(name, datatype, array.shape, array)


def test_every_field_arrives() -> None:
    outputs = [output("A", "INT32", np.array([[1, 2]], np.int32)), output("B", "FP64", np.array([0.5]))]
    response = InferenceResponse("modèle", 3, outputs, id="not sent", parameters={"a": 1, "b": "x"}, final=False)
    found = sent(response)
    assert (found.model_name, found.model_version, found.id, found.final) == ("modèle", 3, "the id", False)
    assert found.parameters == {"a": 1, "b": "x"}
    assert found.error is None
    assert [(each.name, each.datatype, each.shape) for each in found.outputs] == [
        ("A", "INT32", (1, 2)),
        ("B", "FP64", (1,)),
    ]
    assert found.outputs[0].array.tolist() == [[1, 2]]
    assert found.outputs[1].array.tolist() == [0.5]
    assert sent(InferenceResponse("m", 1, [])).final


def test_times_arrive_whatever_the_outputs_are() -> None:
    writer, reader = ResponseWriter(no_offset), ResponseReader(view_of)
    for response in (*packed_responses(2), InferenceResponse("m", 1, [output("A", "INT32", np.zeros(1, np.int32))])):
        for times in (InferenceTimes(1, 2, 3, 4, 5, CloseReason.DELAY), None, InferenceTimes(2**60, 0, 0, 0, 1)):
            response.times = times
            assert read(writer.write(response, 1), reader).times == times


@pytest.mark.parametrize("text", [b"1 2 3 4 0", b"1 2 3 4 x 0", b"1 2 3 4 5 6 0 8", b"1 2 3 4 5 99"])
def test_times_that_cannot_be_read_are_a_bad_frame(text: bytes) -> None:
    head = block_head(orjson.dumps(("m", 1, None, [])), text)
    with pytest.raises(BadFrame, match="times"):
        read(frame(RESPONSE, 1, (head,), flags=FINAL))


@pytest.mark.parametrize("datatype", [name for name in BY_NAME if name != "BYTES"])
@pytest.mark.parametrize("elements", [0, 1, 7, 5000])
def test_arrays_of_every_datatype_arrive(datatype: str, elements: int) -> None:
    array = np.arange(elements).astype(BY_NAME[datatype].dtype)
    (found,) = sent(InferenceResponse("m", 1, [output("OUT", datatype, array)])).outputs
    assert found.array.dtype == array.dtype
    assert (found.array == array).all()
    assert bytes(found.content()) == array.tobytes()


def test_elements_of_bytes_arrive() -> None:
    array = np.empty((2, 2), object)
    array[:] = [[b"", b"a"], [b"\0\xff", b"x" * 1000]]
    (found,) = sent(InferenceResponse("m", 1, [output("OUT", "BYTES", array)])).outputs
    assert found.array.tolist() == array.tolist()


def test_a_tensor_without_dimensions_arrives() -> None:
    (found,) = sent(InferenceResponse("m", 1, [output("OUT", "FP32", np.array(1.5, np.float32))])).outputs
    assert (found.shape, found.array.tolist()) == ((), 1.5)


def test_large_outputs_are_read_from_shared_memory() -> None:
    offsets = iter((4096, None, 524288))

    def put(content: Buffer) -> int | None:
        offset = next(offsets)
        if offset is not None:
            SHARED[offset : offset + len(content)] = content
        return offset

    arrays = [np.full(LARGE // 4, number, np.int32) for number in (1, 2, 3)]
    outputs = [output(f"O{number}", "INT32", array) for number, array in enumerate(arrays)]
    block = ResponseWriter(put).write(InferenceResponse("m", 1, outputs), 1)
    assert LARGE < len(block) < 2 * LARGE
    found = read(block)
    assert [each.name for each in found.outputs] == ["O0", "O1", "O2"]
    for each, array in zip(found.outputs, arrays, strict=True):
        assert (each.array == array).all()


def test_an_error_arrives_with_its_class() -> None:
    error = DeadlineExceeded("too late", hint="more time", model="m")
    found = sent(InferenceResponse("m", 2, [], error=error))
    assert type(found.error) is DeadlineExceeded
    assert (found.error.message, found.error.hint, found.error.model) == ("too late", "more time", "m")
    assert (found.model_version, found.final, list(found.outputs)) == (2, True, [])


def test_an_unexpected_error_hides_its_text(caplog: pytest.LogCaptureFixture) -> None:
    found = read(failed_response(InferenceResponse("m", 1, [], final=False), RuntimeError("secret"), 1))
    assert found.error is not None
    assert found.error.code is ErrorCode.INTERNAL
    assert "secret" not in found.error.message
    assert not found.final
    assert "secret" in caplog.text


def test_similar_responses_are_told_apart() -> None:
    """The head of the block is written once for all similar responses."""
    writer, reader = ResponseWriter(no_offset), ResponseReader(view_of)
    for name, array, parameters in (
        ("A", np.arange(3), None),
        ("A", np.arange(4), None),
        ("B", np.arange(4), None),
        ("A", np.arange(3), {"p": 1}),
        ("A", np.arange(3), {"p": 2}),
        ("A", np.arange(3)[::-1].copy(), None),
    ):
        response = InferenceResponse("m", 1, [output(name, "INT64", array)], parameters=parameters)
        for final in (True, False):
            response.final = final
            found = read(writer.write(response, 1), reader)
            assert (found.outputs[0].name, found.parameters, found.final) == (name, parameters, final)
            assert (found.outputs[0].array == array).all()


def test_the_memory_of_known_documents_is_bounded() -> None:
    writer = ResponseWriter(no_offset)
    for size in range(3000):
        writer.write(InferenceResponse("m", 1, [output("O", "UINT8", np.zeros(size % 2000, np.uint8))]), 1)
        assert len(writer._known) <= 1024


@pytest.mark.parametrize(
    "meta",
    [
        [],
        {},
        ["m", 1],
        ["m", 1, None, [["O", "NONE", [1], 4, False]]],
        ["m", 1, None, [["O", "INT32", [1], 4]]],
        ["m", 1, None, [["O", "INT32", [1], 400, False]]],
        ["m", 1, None, 5],
    ],
)
def test_reading_refuses_malformed_responses(meta: Any) -> None:
    block = frame(RESPONSE, 1, (block_head(orjson.dumps(meta)), *[bytes(4)]), flags=FINAL)
    with pytest.raises(BadFrame):
        read(block)


def test_writing_refuses_a_parameter_that_json_cannot_hold() -> None:
    response = InferenceResponse("m", 1, [], parameters={"p": {1, 2}})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        ResponseWriter(no_offset).write(response, 1)


def test_packed_responses_arrive_unchanged() -> None:
    writer, reader = ResponseWriter(no_offset), ResponseReader(lambda offset, size: np.zeros(0))
    for number, response in enumerate(packed_responses(3)):
        ((_, flags, placed, _, content),) = FrameReader(TO_FRONT_END, "peer").feed(writer.write(response, number))
        found = reader.read(content, flags, placed, "id")
        assert isinstance(found.outputs, PackedOutputs)
        assert isinstance(response.outputs, PackedOutputs)
        assert found.outputs.layout is response.outputs.layout
        assert [output.array.tolist() for output in found.outputs] == [
            output.array.tolist() for output in response.outputs
        ]
