"""Requests and responses between the server and a stub process, as both ends write and read them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.unit.backend_serving import config_of, spec_of, tensor_text
from trident.core.backends.python.batches import Outcome, OutcomeReader, OutputCheck, RequestWriter
from trident.core.backends.python.stub.trident_stub.wire import (
    AGAIN,
    EMPTY,
    FINAL,
    LATER,
    WAITS,
    KnownLayouts,
    MessageLayout,
    SentLayouts,
    read_record,
    tensors_of,
    write_failure,
    write_mark,
    write_record,
)
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.inference import pending_request as response_sender
from trident.core.inference.request import InferenceRequest, InputTensor, PackedInputs
from trident.core.inference.tensors import BY_NAME, layout_of
from trident.core.interprocess.frames import LARGE, BadFrame

A, X, Y = (tensor_text(side, name, "FP32", [-1]) for side, name in (("input", "A"), ("output", "X"), ("output", "Y")))
RESHAPED = "reshape { shape: %s }"


def spec(*tensors: str) -> ModelSpec:
    return spec_of(config_of("max_batch_size: 8\n" + "".join(tensors or (A, X, Y)), "m", "python"))


class Memory:
    """Shared memory as both ends see it: `share` may be used as often as `room` says."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.block = bytearray(1 << 20)
        self.end = 0

    def share(self, content: Any) -> int | None:
        if not self.room:
            return None
        self.room -= 1
        at, self.end = self.end, self.end + len(content)
        self.block[at : self.end] = content
        return at

    def view(self, offset: int, size: int) -> memoryview:
        return memoryview(self.block)[offset : offset + size]


def packed(*arrays: np.ndarray[Any, Any]) -> PackedInputs:
    names = "ABC"
    layout = layout_of((names[i], "FP32", array.shape, array.nbytes) for i, array in enumerate(arrays))
    return PackedInputs(layout, memoryview(b"".join(array.tobytes() for array in arrays)))


def received(frame: bytes, table: KnownLayouts, memory: Memory) -> list[tuple[int, Any, list[Any]]]:
    """The requests of a frame: number, fields and arrays, as the stub reads them."""
    content = memoryview(frame)[16:]
    count, at = table.read_head(content)
    found = []
    for _ in range(count):
        record, at = read_record(content, at)
        layout: MessageLayout = table.layouts[record.layout]
        if record.places:
            contents = tensors_of(record, layout.sizes, memory.view)
        else:
            contents = [record.run[start:end] for _, _, _, start, end in layout.spans]
        arrays = [
            np.frombuffer(each, "<f4").reshape(shape) if datatype == "FP32" else bytes(each)
            for (_, datatype, shape), each in zip(layout.tensors, contents, strict=True)
        ]
        found.append((record.number, json.loads(record.fields or b"{}"), arrays))
    return found


def test_a_batch_of_requests_arrives_in_their_order() -> None:
    memory, table = Memory(), KnownLayouts()
    writer = RequestWriter(spec(), SentLayouts(), memory.share)
    arrays = [np.full((1, width), width, np.float32) for width in (4, 5, 4)]
    requests = [InferenceRequest("m", packed(array)) for array in arrays]
    requests[1].id = "the second"

    for first in (1, 4):  # the second frame refers to the layouts of the first
        found = received(writer.write(1, first, requests), table, memory)
        assert [(number, fields) for number, fields, _ in found] == [
            (first, {}),
            (first + 1, {"id": "the second"}),
            (first + 2, {}),
        ]
        for (_, _, (array,)), sent in zip(found, arrays, strict=True):
            assert np.array_equal(array, sent)


def test_large_inputs_are_in_shared_memory_as_long_as_there_is_room() -> None:
    large = np.arange(LARGE, dtype=np.float32).reshape(1, -1)
    small = np.ones((1, 3), np.float32)
    inputs = [InputTensor("A", "FP32", large.shape, large), InputTensor("B", "FP32", small.shape, small)]
    for room, used in ((1, large.nbytes), (0, 0)):
        memory = Memory(room)
        writer = RequestWriter(spec(), SentLayouts(), memory.share)
        frame = writer.write(1, 1, [InferenceRequest("m", inputs)])
        ((_, _, arrays),) = received(frame, KnownLayouts(), memory)
        assert np.array_equal(arrays[0], large)
        assert np.array_equal(arrays[1], small)
        assert memory.end == used


def test_tensors_that_would_not_be_aligned_are_moved_apart() -> None:
    odd, doubles = np.ones(3, np.uint8), np.arange(2, dtype=np.float64)
    inputs = [InputTensor("A", "UINT8", (3,), odd), InputTensor("B", "FP64", (2,), doubles)]
    frame = RequestWriter(spec(), SentLayouts(), Memory().share).write(1, 1, [InferenceRequest("m", inputs)])
    content, table = memoryview(frame)[16:], KnownLayouts()
    record, _ = read_record(content, table.read_head(content)[1])
    assert [offset % 8 for offset, _ in record.places] == [0, 0]


def test_a_reshaped_input_arrives_in_the_shape_of_the_model() -> None:
    tensor = InputTensor("A", "FP32", (1, 4), np.arange(4, dtype=np.float32))
    tensor.array = np.arange(4, dtype=np.float32).reshape(1, 2, 2)
    reshaped = spec(tensor_text("input", "A", "FP32", [4], RESHAPED % [2, 2]))
    frame = RequestWriter(reshaped, SentLayouts(), Memory().share).write(1, 1, [InferenceRequest("m", [tensor])])
    ((_, _, (array,)),) = received(frame, KnownLayouts(), Memory())
    assert array.shape == (1, 2, 2)


def numpy_datatype(array: np.ndarray[Any, Any]) -> str:
    return next(each.name for each in BY_NAME.values() if each.dtype == array.dtype)


class Answers:
    """What a stub writes, and how the server reads it."""

    def __init__(self, *tensors: str, strict: bool = False) -> None:
        self.memory = Memory()
        self.numbers = SentLayouts()
        self.reader = OutcomeReader(spec(*tensors), self.memory.view, OutputCheck(spec(*tensors), strict))
        self.records: list[Any] = []
        self.count = 0

    def add(self, *outputs: tuple[str, np.ndarray[Any, Any]], flags: int = FINAL, fields: bytes = b"") -> None:
        described = tuple((name, numpy_datatype(array), array.shape) for name, array in outputs)
        found = self.numbers.find(described) or self.numbers.add(described, described)
        contents = [array.tobytes() for _, array in outputs]
        write_record(self.records, self.count, found, contents, self.memory.share, flags=flags, fields=fields)
        self.count += 1

    @property
    def content(self) -> memoryview:
        content = b"".join([self.numbers.head(self.count), *self.records])
        self.records, self.count = [], 0
        return memoryview(content)


def test_the_outcomes_of_a_batch() -> None:
    answers = Answers()
    x, y = np.ones((1, 2), np.float32), np.full((1, 2), 2, np.float32)
    answers.add(("X", x), ("Y", y))
    write_failure(answers.records, 1, 3, "wrong: ä", FINAL)
    write_mark(answers.records, 2, LATER)
    write_mark(answers.records, 3, AGAIN)
    answers.add(("X", x), fields=b'{"took": 3}')
    answers.count = 5
    first, failed, later, again, last = answers.reader.result(answers.content, [1] * 5)

    assert isinstance(first, Outcome)
    assert first.outputs is not None
    assert [(output.name, output.array.tolist()) for output in first.outputs] == [("X", [[1, 1]]), ("Y", [[2, 2]])]
    assert isinstance(failed, Outcome)
    assert isinstance(failed.error, InvalidRequest)
    assert failed.error.message == "wrong: ä"
    assert (later, again) == (response_sender.LATER, response_sender.AGAIN)
    assert isinstance(last, Outcome)
    assert last.parameters == {"took": 3}


@pytest.mark.parametrize(
    ("name", "array", "fault"),
    [
        ("Z", np.zeros((2, 2), np.float32), "is not in the configuration, whose outputs are: 'X', 'Y'"),
        ("X", np.zeros((2, 2), np.float64), "has the datatype FP64, but the configuration says FP32"),
        ("Y", np.zeros((2, 3), np.float32), "has the shape [2, 3], but the configuration says [-1, 2]"),
        ("Y", np.zeros((2, 2, 1), np.float32), "has the shape [2, 2, 1], but the configuration says [-1, 2]"),
        ("X", np.zeros((1, 2), np.float32), "has 1 rows, but its request has a batch of 2"),
    ],
)
def test_outputs_that_are_not_as_configured(
    name: str, array: np.ndarray[Any, Any], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = X, tensor_text("output", "Y", "FP32", [4], RESHAPED % [2])
    text = f"output '{name}' of model 'm' {fault}"
    answers, strict = Answers(*outputs), Answers(*outputs, strict=True)
    for _ in range(2):
        answers.add((name, array))
        (outcome,) = answers.reader.result(answers.content, [2])
        assert isinstance(outcome, Outcome)
        assert outcome.outputs is not None
        assert [output.array.tolist() for output in outcome.outputs] == ([] if name == "Z" else [array.tolist()])
        strict.add((name, array))
        (refused,) = strict.reader.result(strict.content, [2])
        assert isinstance(refused, Outcome)
        assert refused.error is not None
        assert refused.error.message == f"{text} (--strict-python-outputs)"
    (record,) = caplog.records
    assert record.getMessage().startswith(text)


def test_a_request_of_the_model_is_no_output(caplog: pytest.LogCaptureFixture) -> None:
    answers = Answers(strict=True)
    answers.add(("IN", np.ones(1, np.float32)))
    assert answers.reader.model_request(answers.content).inputs[0][0] == ("IN", "FP32", (1,))
    assert not caplog.records


def test_outputs_get_the_shape_of_the_client() -> None:
    answers = Answers(tensor_text("output", "X", "FP32", [4], RESHAPED % [2, 2]))
    answers.add(("X", np.ones((1, 2, 2), np.float32)))
    (outcome,) = answers.reader.result(answers.content, [1])
    assert isinstance(outcome, Outcome)
    assert outcome.outputs is not None
    assert [output.shape for output in outcome.outputs] == [(1, 4)]


def test_large_outputs_are_read_from_shared_memory() -> None:
    answers = Answers()
    large = np.arange(LARGE, dtype=np.float32).reshape(1, -1)
    answers.add(("X", large), ("Y", np.ones((1, 1), np.float32)))
    (outcome,) = answers.reader.result(answers.content, [1])
    assert isinstance(outcome, Outcome)
    assert outcome.outputs is not None
    assert np.array_equal(outcome.outputs[0].array, large)
    assert outcome.outputs[1].array.tolist() == [[1]]


def test_the_responses_of_a_sender() -> None:
    answers = Answers()
    for flags in (0, WAITS):
        answers.add(("X", np.ones((1, 1), np.float32)), flags=flags)
        outcome = answers.reader.response(answers.content)
        assert (outcome.is_final, outcome.error, outcome.outputs is not None) == (False, None, True)
        assert outcome.waits is bool(flags)
    write_mark(answers.records, 1, FINAL | EMPTY)
    answers.count = 1
    assert answers.reader.response(answers.content) == (None, None, None, True, False)


@pytest.mark.parametrize("layouts", [b"[1]", b'[[0,[["X","FP33",[1]]],[]]]', b'[[0,[["X","FP32",[-1]]],[]]]', b"{"])
def test_layouts_that_cannot_be_read_end_the_connection(layouts: bytes) -> None:
    head = (1).to_bytes(4, "little") + len(layouts).to_bytes(4, "little") + bytes(8)
    with pytest.raises(BadFrame, match="layouts"):
        KnownLayouts().read_head(memoryview(head + layouts + bytes(-len(layouts) % 16)))


def test_records_that_say_more_than_they_have_end_the_connection() -> None:
    answers = Answers()
    answers.add(("X", np.ones((1, 2), np.float32)))
    whole = bytes(answers.content)
    for size in range(len(whole)):
        with pytest.raises(BadFrame):
            Answers().reader.result(memoryview(whole[:size]), [1])
    with pytest.raises(BadFrame, match="1 outcomes for 2 requests"):
        Answers().reader.result(memoryview(whole), [1, 1])


def test_a_tensor_of_another_size_than_its_shape_ends_the_connection() -> None:
    answers = Answers()
    found = answers.numbers.add("key", [("X", "FP32", (1, LARGE))])
    write_record(answers.records, 0, found, [bytes(LARGE)], answers.memory.share, flags=FINAL)
    answers.count = 1
    with pytest.raises(BadFrame, match=f"a tensor of {LARGE} bytes whose shape has {4 * LARGE}"):
        answers.reader.result(answers.content, [1])


def test_an_unknown_layout_ends_the_connection() -> None:
    answers = Answers()
    write_record(answers.records, 0, (9, True), [b""], answers.memory.share, flags=FINAL)
    answers.count = 1
    with pytest.raises(BadFrame, match="layout 9"):
        answers.reader.result(answers.content, [1])


def test_a_failure_is_a_flag_of_its_own() -> None:
    answers = Answers()
    write_failure(answers.records, 0, 99, "of an unknown code")
    answers.count = 1
    outcome = answers.reader.response(answers.content)
    assert outcome.error is not None
    assert outcome.error.reason == "Internal: of an unknown code"
    assert not outcome.is_final
