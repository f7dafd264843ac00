"""Packed tensors on their whole way: from the body into the batch, and from the batch into the response."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from core.backends.tensors.gatherer import Gatherer
from core.backends.tensors.splitter import Splitter
from core.config.model_spec import InputSpec, ModelSpec, OutputSpec
from core.config.request_validator import RequestValidator
from core.errors import InvalidRequest
from core.http.v2.response_codec import ResponsePlan, encode_response
from core.inference.layout import TensorLayout, layout_of
from core.inference.request import InferenceRequest, InputTensor, PackedInputs
from core.inference.response import InferenceResponse, PackedOutputs
from core.inference.tensors import BY_NAME, Array
from core.remote.calls.request_message import RequestReader, RequestWriter
from core.remote.calls.response_message import ResponseReader, ResponseWriter
from core.remote.transport.frames import TO_ENGINE, TO_FRONT_END, FrameReader


def spec(max_batch_size: int = 8, **dims: tuple[str, tuple[int, ...]]) -> ModelSpec:
    inputs = {
        name: InputSpec(name=name, datatype=BY_NAME[datatype], dims=shape) for name, (datatype, shape) in dims.items()
    }
    outputs = {
        name: OutputSpec(name=name, datatype=BY_NAME[datatype], dims=shape) for name, (datatype, shape) in dims.items()
    }
    return ModelSpec(
        name="m",
        version=1,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        inputs=inputs,
        outputs=outputs,
    )


TWO = spec(A=("INT32", (3,)), B=("FP64", (1,)))


def packed(a: list[int], b: float, *, rows: int = 1) -> InferenceRequest:
    """A request whose second input is not aligned: twelve bytes stand before it."""
    first, second = np.tile(np.array(a, np.int32), rows), np.tile(np.array([b], np.float64), rows)
    layout = layout_of([("A", "INT32", (rows, 3), first.nbytes), ("B", "FP64", (rows, 1), second.nbytes)])
    return InferenceRequest("m", PackedInputs(layout, memoryview(first.tobytes() + second.tobytes())))


def no_place(content: object) -> int | None:
    raise AssertionError("nothing here is large")


def test_packed_and_separate_inputs_have_the_same_size() -> None:
    request = packed([1, 2, 3], 0.5, rows=2)
    assert request.nbytes == 40
    request.inputs = [*request.inputs, InputTensor("C", "BYTES", (1,), memoryview(b"\x01\0\0\0x"))]
    assert request.nbytes == 45


def test_tensors_that_look_alike_share_one_layout() -> None:
    described = [("A", "INT32", (1, 3), 12), ("B", "FP64", (1, 1), 8)]
    layout = layout_of(described)
    assert layout is layout_of(list(described))
    assert layout is not layout_of(described[:1])
    assert layout.size == 20
    assert layout.entries[1] == ("B", "FP64", (1, 1), 12, 20)
    assert layout_of([]).size == 0


def test_a_forgotten_layout_is_made_again() -> None:
    first = layout_of([("A", "INT8", (0,), 0)])
    for size in range(1, 1100):
        assert layout_of([("A", "INT8", (size,), size)]).size == size
    assert layout_of([("A", "INT8", (0,), 0)]).entries == first.entries


def test_packed_inputs_are_cut_on_first_use() -> None:
    request = packed([1, 2, 3], 0.5)
    first, second = request.inputs
    assert (first.name, first.datatype, first.shape) == ("A", "INT32", (1, 3))
    assert first.array.tolist() == [[1, 2, 3]]
    assert second.array.tolist() == [[0.5]]
    assert second.array.flags.aligned
    assert request.inputs[0] is first


def test_the_validator_remembers_valid_layouts_only() -> None:
    validator = RequestValidator(TWO)
    for _ in range(3):
        request = packed([1, 2, 3], 0.5, rows=2)
        assert validator.check(request) == (2, None)
        assert [tensor.array.tolist() for tensor in request.inputs] == [[[1, 2, 3]] * 2, [[0.5]] * 2]
        with pytest.raises(InvalidRequest, match="batch-size must be <= 8"):
            validator.check(packed([1, 2, 3], 0.5, rows=9))


def test_the_validator_does_not_remember_a_layout_without_items() -> None:
    validator = RequestValidator(spec(A=("INT32", (3,))))
    for _ in range(2):
        layout = layout_of([("A", "INT32", (0, 3), 12)])
        content = memoryview(np.array([1, 2, 3], np.int32).tobytes())
        request = InferenceRequest("m", PackedInputs(layout, content))
        assert validator.check(request) == (1, None)
        assert request.inputs[0].array.tolist() == [[1, 2, 3]]


def batch(*requests: InferenceRequest) -> dict[str, Array]:
    batch_sizes = [RequestValidator(TWO).check(request)[0] for request in requests]
    return Gatherer(TWO).gather(requests, sum(batch_sizes))


def test_requests_of_one_layout_become_one_block() -> None:
    feed = batch(packed([1, 2, 3], 0.5), packed([4, 5, 6], 1.5), packed([7, 8, 9], 2.5))
    assert feed["A"].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert feed["B"].tolist() == [[0.5], [1.5], [2.5]]
    assert all(array.flags.c_contiguous and array.flags.aligned for array in feed.values())


def test_requests_of_several_items_and_one_layout_become_one_block() -> None:
    feed = batch(packed([1, 2, 3], 0.5, rows=2), packed([4, 5, 6], 1.5, rows=2))
    assert feed["A"].tolist() == [[1, 2, 3]] * 2 + [[4, 5, 6]] * 2
    assert feed["B"].tolist() == [[0.5], [0.5], [1.5], [1.5]]


def test_requests_of_different_layouts_are_gathered() -> None:
    single = InferenceRequest(
        "m",
        [
            InputTensor("B", "FP64", (1, 1), np.array([9.5])),
            InputTensor("A", "INT32", (1, 3), np.array([7, 8, 9], np.int32)),
        ],
    )
    feed = batch(packed([1, 2, 3], 0.5), packed([4, 5, 6], 1.5, rows=2), single)
    assert feed["A"].tolist() == [[1, 2, 3], [4, 5, 6], [4, 5, 6], [7, 8, 9]]
    assert feed["B"].tolist() == [[0.5], [1.5], [1.5], [9.5]]


def test_requests_arrive_unchanged_with_and_without_an_id() -> None:
    writer, reader = RequestWriter(), RequestReader(lambda place, size: memoryview(b""))
    layouts = set()
    for number, request_id in enumerate(("", "", "an id", "")):
        request = packed([number, 2, 3], number / 2)
        request.id = request_id
        ((_, _, placed, got, content),) = FrameReader(TO_ENGINE).feed(writer.write(request, number, no_place))
        found = reader.read(content, placed)
        assert isinstance(found.inputs, PackedInputs)
        layouts.add(found.inputs.layout)
        assert (got, found.id, found.model_version) == (number, request_id, -1)
        assert [tensor.array.tolist() for tensor in found.inputs] == [[[number, 2, 3]], [[number / 2]]]
    assert len(layouts) == 1


def test_the_options_of_a_request_arrive() -> None:
    writer, reader = RequestWriter(), RequestReader(lambda place, size: memoryview(b""))
    plain = packed([1, 2, 3], 0.5)
    special = packed([1, 2, 3], 0.5)
    special.parameters, special.correlation_id, special.sequence_end = {"p": 1}, 7, True
    other = packed([1, 2, 3], 0.5)
    other.priority, other.outputs, other.timeout_us = 2, ("A",), 9
    seen = []
    for request in (plain, special, other, plain):
        ((_, _, placed, _, content),) = FrameReader(TO_ENGINE).feed(writer.write(request, 1, no_place))
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


def results(count: int) -> list[Array]:
    return [
        np.arange(3 * count, dtype=np.int32).reshape(count, 3),
        np.arange(count, dtype=np.float64).reshape(count, 1),
    ]


def plain_requests(count: int, outputs: tuple[str, ...] = ()) -> list[InferenceRequest]:
    return [InferenceRequest("m", [], outputs=outputs) for _ in range(count)]


def test_small_results_become_one_run_of_bytes_for_each_request() -> None:
    answers = Splitter(TWO, {}).split(plain_requests(3), [1] * 3, results(3), 3)
    assert all(isinstance(answer, PackedOutputs) for answer in answers)
    responses = [InferenceResponse("m", 1, answer) for answer in answers]
    assert [[output.array.tolist() for output in response.outputs] for response in responses] == [
        [[[0, 1, 2]], [[0.0]]],
        [[[3, 4, 5]], [[1.0]]],
        [[[6, 7, 8]], [[2.0]]],
    ]
    assert all(output.array.flags.aligned for response in responses for output in response.outputs)
    assert len({answer.layout for answer in answers if isinstance(answer, PackedOutputs)}) == 1


def test_only_the_requested_outputs_are_packed() -> None:
    for wanted in (("B",), ("B", "A")):
        (first, _) = Splitter(TWO, {}).split(plain_requests(2, wanted), [1, 1], results(2), 2)
        response = InferenceResponse("m", 1, first)
        assert [output.name for output in response.outputs] == sorted(wanted)
        assert response.outputs[-1].array.tolist() == [[0.0]]


def test_requests_for_different_outputs_get_their_own() -> None:
    requests = [*plain_requests(1), *plain_requests(1, ("B",))]
    answers = Splitter(TWO, {}).split(requests, [1, 1], results(2), 2)
    assert [[output.name for output in answer] for answer in answers] == [["A", "B"], ["B"]]


def test_large_results_are_not_copied() -> None:
    large = np.zeros((2, 100_000), np.int32)
    answers = Splitter(spec(A=("INT32", (100_000,))), {}).split(plain_requests(2), [1, 1], [large], 2)
    for answer in answers:
        assert isinstance(answer, list)
        assert np.shares_memory(answer[0].array, large)


def test_results_without_elements_are_split() -> None:
    answers = Splitter(spec(A=("INT32", (-1,))), {}).split(plain_requests(2), [1, 1], [np.zeros((2, 0), np.int32)], 2)
    assert [InferenceResponse("m", 1, answer).outputs[0].shape for answer in answers] == [(1, 0), (1, 0)]


def responses(count: int, request_id: str = "") -> list[InferenceResponse]:
    answers = Splitter(TWO, {}).split(plain_requests(count), [1] * count, results(count), count)
    return [InferenceResponse("m", 1, answer, id=request_id) for answer in answers]


def test_packed_responses_arrive_unchanged() -> None:
    writer, reader = ResponseWriter(no_place), ResponseReader(lambda place, size: np.zeros(0))
    for number, response in enumerate(responses(3)):
        ((_, flags, placed, _, content),) = FrameReader(TO_FRONT_END).feed(writer.write(response, number))
        found = reader.read(content, flags, placed, "id")
        assert isinstance(found.outputs, PackedOutputs)
        assert isinstance(response.outputs, PackedOutputs)
        assert found.outputs.layout is response.outputs.layout
        assert [output.array.tolist() for output in found.outputs] == [
            output.array.tolist() for output in response.outputs
        ]


@pytest.mark.parametrize("request_id", ["", "an id", 'quotes " and \u00e4'])
def test_the_text_of_a_binary_response_is_written_once(request_id: str) -> None:
    plan = ResponsePlan(binary=True).keeping_texts()
    for response in responses(3, request_id):
        once = encode_response(response, ResponsePlan(binary=True), TWO)
        again = encode_response(response, plan, TWO)
        assert b"".join(again[0]) == b"".join(once[0])
        assert again[1] == once[1]
        assert orjson.loads(again[0][0]).get("id", "") == request_id
    assert plan.texts is not None
    assert len(plan.texts) == 1


def test_responses_with_anything_of_their_own_are_written_each_time() -> None:
    plan = ResponsePlan(binary=True).keeping_texts()
    (first, second) = responses(2)
    first.parameters = {"p": 1}
    assert orjson.loads(encode_response(first, plan, TWO)[0][0])["parameters"] == {"p": 1}
    assert "parameters" not in orjson.loads(encode_response(second, plan, TWO)[0][0])


def test_an_output_asked_for_as_json_is_json_each_time() -> None:
    plan = ResponsePlan(outputs={"A": (False, 0), "B": (True, 0)}).keeping_texts()
    seen = [orjson.loads(encode_response(response, plan, TWO)[0][0])["outputs"][0] for response in responses(2)]
    assert [entry["data"] for entry in seen] == [[0, 1, 2], [3, 4, 5]]


def test_a_plan_does_not_remember_texts_without_end() -> None:
    plan = ResponsePlan(binary=True).keeping_texts()
    assert plan.texts is not None
    for number in range(1000):
        plan.texts[number, TensorLayout(())] = None
    assert 0 < len(plan.texts) <= 64
