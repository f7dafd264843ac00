"""Requests and responses between the server and a stub process, as both ends write and read them."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from tests.project import pure_python_only
from tests.unit.backend_serving import config_of, spec_of, tensor_text
from trident.core.backends.python.batches import Outcome, OutcomeReader, OutputCheck, write_batch
from trident.core.backends.python.stub.trident_stub.wire import (
    AGAIN,
    EMPTY,
    EXECUTE,
    FINAL,
    LATER,
    LAYOUTS,
    RESPONSE,
    ROOM,
    WAITS,
    KnownLayouts,
    MessageLayout,
    Records,
    SentLayouts,
    from_json,
    read_record,
    tensors_of,
    to_json,
)
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ErrorCode, InvalidRequest, ServerError
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
        self.unshared: list[int] = []

    def share(self, content: Any) -> int | None:
        if not self.room:
            return None
        self.room -= 1
        at, self.end = self.end, self.end + len(content)
        self.block[at : self.end] = content
        return at

    def unshare(self, offset: int) -> None:
        self.unshared.append(offset)

    def view(self, offset: int, size: int) -> memoryview:
        return memoryview(self.block)[offset : offset + size]


class BatchWriter:
    """Makes the frames of batches as the channel does."""

    def __init__(self, spec: ModelSpec, numbers: SentLayouts, memory: Memory) -> None:
        self._numbers, self._memory, self._outputs = numbers, memory, tuple(spec.outputs)
        self._reshaped = frozenset(name for name, each in spec.inputs.items() if each.model_dims is not None)

    def write(self, first: int, requests: list[InferenceRequest]) -> tuple[bytes, dict[int, ServerError]]:
        records = Records(self._numbers, self._memory)
        refused = write_batch(records, first, requests, "m", self._outputs, self._reshaped)
        return records.frame(EXECUTE, first), refused


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
        found.append((record.number, from_json(record.fields or b"{}"), arrays))
    return found


def test_batch_of_requests_arrives_in_their_order() -> None:
    memory, table = Memory(), KnownLayouts()
    numbers = SentLayouts()
    writer = BatchWriter(spec(), numbers, memory)
    arrays = [np.full((1, width), width, np.float32) for width in (4, 5, 4)]
    requests = [InferenceRequest("m", packed(array)) for array in arrays]
    requests[1].id = "the second"

    for first in (1, 4):  # the second frame refers to the layouts of the first
        frame, refused = writer.write(first, requests)
        numbers.sent()
        assert not refused
        found = received(frame, table, memory)
        assert [(number, fields) for number, fields, _ in found] == [
            (first, {}),
            (first + 1, {"id": "the second"}),
            (first + 2, {}),
        ]
        for (_, _, (array,)), sent in zip(found, arrays, strict=True):
            assert np.array_equal(array, sent)


def test_large_inputs_use_shared_memory_while_space_is_free() -> None:
    large = np.arange(LARGE, dtype=np.float32).reshape(1, -1)
    small = np.ones((1, 3), np.float32)
    inputs = [InputTensor("A", "FP32", large.shape, large), InputTensor("B", "FP32", small.shape, small)]
    for room, used in ((1, large.nbytes), (0, 0)):
        memory = Memory(room)
        writer = BatchWriter(spec(), SentLayouts(), memory)
        frame, _ = writer.write(1, [InferenceRequest("m", inputs)])
        ((_, _, arrays),) = received(frame, KnownLayouts(), memory)
        assert np.array_equal(arrays[0], large)
        assert np.array_equal(arrays[1], small)
        assert memory.end == used


def test_tensors_are_padded_to_their_alignment() -> None:
    odd, doubles = np.ones(3, np.uint8), np.arange(2, dtype=np.float64)
    inputs = [InputTensor("A", "UINT8", (3,), odd), InputTensor("B", "FP64", (2,), doubles)]
    frame, _ = BatchWriter(spec(), SentLayouts(), Memory()).write(1, [InferenceRequest("m", inputs)])
    content, table = memoryview(frame)[16:], KnownLayouts()
    record, _ = read_record(content, table.read_head(content)[1])
    assert [offset % 8 for offset, _ in record.places] == [0, 0]


def test_reshaped_input_arrives_in_the_shape_of_the_model() -> None:
    tensor = InputTensor("A", "FP32", (1, 4), np.arange(4, dtype=np.float32))
    tensor.array = np.arange(4, dtype=np.float32).reshape(1, 2, 2)
    reshaped = spec(tensor_text("input", "A", "FP32", [4], RESHAPED % [2, 2]))
    frame, _ = BatchWriter(reshaped, SentLayouts(), Memory()).write(1, [InferenceRequest("m", [tensor])])
    ((_, _, (array,)),) = received(frame, KnownLayouts(), Memory())
    assert array.shape == (1, 2, 2)


def numpy_datatype(array: np.ndarray[Any, Any]) -> str:
    return next(each.name for each in BY_NAME.values() if each.dtype == array.dtype)


class Answers:
    """Writes records as a stub does and reads them as the server does."""

    def __init__(self, *tensors: str, strict: bool = False) -> None:
        self.memory = Memory()
        self.numbers = SentLayouts()
        self.reader = OutcomeReader(spec(*tensors), self.memory.view, OutputCheck(spec(*tensors), strict))
        self.records = Records(self.numbers, self.memory)

    def add(self, *outputs: tuple[str, np.ndarray[Any, Any]], flags: int = FINAL, fields: bytes = b"") -> None:
        described = tuple((name, numpy_datatype(array), array.shape) for name, array in outputs)
        found = self.numbers.find(described) or self.numbers.add(described, described)
        contents = [array.tobytes() for _, array in outputs]
        self.records.add(self.records.count, found, contents, flags=flags, fields=fields)

    @property
    def content(self) -> memoryview:
        frame = self.records.frame(RESPONSE, 0)
        self.numbers.sent()
        self.records = Records(self.numbers, self.memory)
        return memoryview(frame)[16:]


def test_outcomes_of_a_batch_are_read_in_order() -> None:
    answers = Answers()
    x, y = np.ones((1, 2), np.float32), np.full((1, 2), 2, np.float32)
    answers.add(("X", x), ("Y", y))
    answers.records.add_failure(1, 3, "wrong: ä", FINAL)
    answers.records.add_mark(2, LATER)
    answers.records.add_mark(3, AGAIN)
    answers.add(("X", x), fields=b'{"took": 3}')
    first, failed, later, again, last = answers.reader.result(0, answers.content, [1] * 5)

    assert isinstance(first, Outcome)
    assert first.outputs is not None
    assert [(output.name, output.array.tolist()) for output in first.outputs] == [("X", [[1, 1]]), ("Y", [[2, 2]])]
    assert isinstance(failed, Outcome)
    assert isinstance(failed.error, BackendFailed), "the class says that the model failed, whatever its code"
    assert (failed.error.code, failed.error.message) == (ErrorCode.INVALID_ARG, "wrong: ä")
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
def test_unconfigured_outputs_are_logged_or_refused(
    name: str, array: np.ndarray[Any, Any], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = X, tensor_text("output", "Y", "FP32", [4], RESHAPED % [2])
    text = f"output '{name}' of model 'm' {fault}"
    answers, strict = Answers(*outputs), Answers(*outputs, strict=True)
    for _ in range(2):
        answers.add((name, array))
        (outcome,) = answers.reader.result(0, answers.content, [2])
        assert isinstance(outcome, Outcome)
        assert outcome.outputs is not None
        assert [output.array.tolist() for output in outcome.outputs] == ([] if name == "Z" else [array.tolist()])
        strict.add((name, array))
        (refused,) = strict.reader.result(0, strict.content, [2])
        assert isinstance(refused, Outcome)
        assert refused.error is not None
        assert refused.error.message == f"{text} (--strict-python-outputs)"
    (record,) = caplog.records
    assert record.getMessage().startswith(text)


def test_unconfigured_outputs_are_logged_a_bounded_number_of_times(caplog: pytest.LogCaptureFixture) -> None:
    check = OutputCheck(spec())
    for number in range(1000):
        assert check.problem(f"new {number}", "FP32", (1,)) == ""
    assert (len(caplog.records), len(check._said)) == (100, 100)


def test_request_of_a_model_is_not_checked_as_an_output(caplog: pytest.LogCaptureFixture) -> None:
    answers = Answers(strict=True)
    answers.add(("IN", np.ones(1, np.float32)))
    assert answers.reader.model_request(0, answers.content).inputs[0][0] == ("IN", "FP32", (1,))
    assert not caplog.records


def test_large_outputs_are_read_from_shared_memory() -> None:
    answers = Answers()
    large = np.arange(LARGE, dtype=np.float32).reshape(1, -1)
    answers.add(("X", large), ("Y", np.ones((1, 1), np.float32)))
    (outcome,) = answers.reader.result(0, answers.content, [1])
    assert isinstance(outcome, Outcome)
    assert outcome.outputs is not None
    assert np.array_equal(outcome.outputs[0].array, large)
    assert outcome.outputs[1].array.tolist() == [[1]]


def test_responses_of_a_sender_keep_their_flags() -> None:
    answers = Answers()
    for flags in (0, WAITS):
        answers.add(("X", np.ones((1, 1), np.float32)), flags=flags)
        outcome = answers.reader.response(0, answers.content)
        assert (outcome.is_final, outcome.error, outcome.outputs is not None) == (False, None, True)
        assert outcome.waits is bool(flags)
    answers.records.add_mark(0, FINAL | EMPTY)
    assert answers.reader.response(0, answers.content) == (None, None, None, True, False)


@pytest.mark.parametrize(
    "layouts",
    [
        b"[1]",
        b'[[1,[["X","FP32",[1]]],[]]]',
        b"[[0,[],[]],[0,[],[]]]",
        b'[[0,[["X","FP33",[1]]],[]]]',
        b'[[0,[["X","FP32",[-1]]],[]]]',
        b"{",
    ],
)
def test_layouts_that_cannot_be_read_end_the_connection(layouts: bytes) -> None:
    head = (1).to_bytes(4, "little") + len(layouts).to_bytes(4, "little") + bytes(8)
    with pytest.raises(BadFrame, match=r"layout|JSON"):
        KnownLayouts().read_head(memoryview(head + layouts + bytes(-len(layouts) % 16)))


def test_truncated_records_end_the_connection() -> None:
    answers = Answers()
    answers.add(("X", np.ones((1, 2), np.float32)))
    whole = bytes(answers.content)
    for size in range(len(whole)):
        with pytest.raises(BadFrame):
            Answers().reader.result(0, memoryview(whole[:size]), [1])
    with pytest.raises(BadFrame, match="1 outcomes for 2 requests"):
        Answers().reader.result(0, memoryview(whole), [1, 1])


def test_tensor_of_another_size_than_its_shape_ends_the_connection() -> None:
    answers = Answers()
    found = answers.numbers.add("key", [("X", "FP32", (1, LARGE))])
    answers.records.add(0, found, [bytes(LARGE)], flags=FINAL)
    with pytest.raises(BadFrame, match=f"a tensor of {LARGE} bytes whose shape has {4 * LARGE}"):
        answers.reader.result(0, answers.content, [1])


def test_failed_response_need_not_be_final() -> None:
    answers = Answers()
    answers.records.add_failure(0, 99, "of an unknown code")
    outcome = answers.reader.response(0, answers.content)
    assert outcome.error is not None
    assert outcome.error.reason == "Internal: of an unknown code"
    assert not outcome.is_final


@pytest.mark.parametrize("at", [0, 16, 32])
def test_lost_or_additional_bytes_end_the_connection(at: int) -> None:
    """As if a thread of the model had written to the socket."""
    answers = Answers()
    answers.add(("X", np.ones((1, 2), np.float32)))
    whole = bytes(answers.content)
    for changed in (
        whole[: -at or None] + bytes(16) + whole[len(whole) - at :],
        whole[: -at - 16] + whole[-at or None :],
    ):
        for length in (len(changed), len(whole)):
            with pytest.raises(BadFrame):
                answers.reader.result(0, memoryview(changed.ljust(length, b"\0")[:length]), [1])


# --- layouts, whose numbers mean one thing


def test_layout_numbers_are_never_reused() -> None:
    random = Random(7)
    for limit, frames in ((1, 300), (2, 300), (8, 300), (LAYOUTS, 30)):
        sent, known = SentLayouts(limit), KnownLayouts()
        meaning: dict[int, tuple[Any, ...]] = {}
        pending = 0
        for _ in range(frames):
            used: list[tuple[int, tuple[Any, ...]]] = []
            for _ in range(random.choice((0, 1, 3, 3 * limit))):
                tensors = ((random.choice("XY"), "FP32", (1, random.randrange(4 * limit))),)
                number, _ = sent.find(tensors) or sent.add(tensors, tensors)
                assert meaning.setdefault(number, tensors) == tensors
                used.append((number, tensors))
            head = sent.head(len(used))
            pending += len(used)
            if random.random() < 0.2:
                continue  # something failed before the frame was sent
            sent.sent()
            known.read_head(memoryview(head))
            assert [known.find(number).tensors for number, _ in used] == [tensors for _, tensors in used]
            assert len(known.layouts) <= limit + pending
            pending = 0
            assert len(sent._known) <= limit


def test_evicted_layouts_stay_unknown() -> None:
    sent, known = SentLayouts(1), KnownLayouts()
    heads = []
    for width in (1, 2, 3):
        sent.add(width, [("X", "FP32", (width,))])
        heads.append(memoryview(sent.head(1)))
        sent.sent()
        known.read_head(heads[-1])
    assert list(known.layouts) == [1, 2]
    with pytest.raises(BadFrame, match="the unknown layout 0"):
        known.find(0)
    for head in heads[:2]:
        with pytest.raises(BadFrame, match="layout"):
            known.read_head(head)


# --- requests that fail alone


class Unreadable(InputTensor):
    @property
    def data(self) -> memoryview:
        raise InvalidRequest("the region has shrunk")


@pure_python_only
def test_unreadable_request_fails_alone() -> None:
    memory, large = Memory(), np.arange(LARGE, dtype=np.float32).reshape(1, -1)
    whole = InputTensor("A", "FP32", large.shape, large)
    broken = Unreadable("B", "FP32", (1, 4), memoryview(bytes(16)))
    requests = [InferenceRequest("m", inputs) for inputs in ([whole], [whole, broken], [whole])]
    requests[2].parameters = {"digits": 10**5000}
    requests.append(InferenceRequest("m", packed(np.ones((1, 2), np.float32))))
    frame, refused = BatchWriter(spec(), SentLayouts(), memory).write(5, requests)
    assert [number for number, _, _ in received(frame, KnownLayouts(), memory)] == [5, 6]
    assert {index: type(error) for index, error in refused.items()} == {1: InvalidRequest, 2: InvalidRequest}
    assert refused[1].message == "the region has shrunk"
    assert memory.end == large.nbytes  # nothing of the others was shared


def test_record_that_is_too_large_is_not_written() -> None:
    memory = Memory(1)
    records = Records(SentLayouts(), memory)
    records.room = 2 * LARGE
    found = records.numbers.add("key", [("X", "UINT8", (LARGE,)), ("Y", "UINT8", (2 * LARGE,))])
    with pytest.raises(ValueError, match="bytes are more than a message can have"):
        records.add(1, found, [bytes(LARGE), bytes(2 * LARGE)])
    assert (records.parts, records.count, memory.unshared) == ([], 0, [0])
    assert ROOM > 1 << 31


# --- strings of Python


@pytest.mark.parametrize("value", ["\udce9", "ä\0\n", 2**70, -(2**63), 1e308, float("inf"), True, None])
def test_values_of_json_cross_unchanged(value: object) -> None:
    assert from_json(memoryview(to_json([value, {"key": value}]))) == [value, {"key": value}]
    request = InferenceRequest("m", packed(np.ones((1, 1), np.float32)), id="\udce9")
    request.parameters = {"\ud800": value, "nan": float("nan")}  # type: ignore[dict-item]
    frame, _ = BatchWriter(spec(), SentLayouts(), Memory()).write(1, [request])
    ((_, fields, _),) = received(frame, KnownLayouts(), Memory())
    assert (fields["id"], fields["parameters"]["\ud800"]) == ("\udce9", value)
    assert str(fields["parameters"]["nan"]) == "nan"


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"a": 1, "b": "\ud800"}, "the parameter 'b', which is not UTF-8"),
        ({"\ud800": 1}, "the parameter '?', which is not UTF-8"),
        ({"a": 2**64}, "the parameter 'a', which is not a 64-bit integer: 18446744073709551616"),
        ({"a": "ä", "b": 2**64 - 1, "c": -(2**63), "d": True}, ""),
    ],
)
def test_unsendable_response_parameter_fails_its_request(parameters: dict[str, Any], problem: str) -> None:
    answers = Answers()
    answers.add(("X", np.ones((1, 1), np.float32)), fields=to_json(parameters))
    answers.add(("X", np.ones((1, 1), np.float32)))
    first, other = answers.reader.result(0, answers.content, [1, 1])
    assert isinstance(first, Outcome)
    assert isinstance(other, Outcome)
    assert other.outputs is not None
    if problem:
        assert first.error is not None
        assert problem in first.error.message
        first.error.message.encode()
    else:
        assert first.parameters == parameters


@pytest.mark.parametrize("fields", [b"[]", b'{"a": null}', b'{"a": [1]}'])
def test_parameters_of_another_type_end_the_connection(fields: bytes) -> None:
    answers = Answers()
    answers.add(("X", np.ones((1, 1), np.float32)), fields=fields)
    with pytest.raises(BadFrame, match="are no parameters"):
        answers.reader.result(0, answers.content, [1])
