"""Models and requests with packed tensors, for tests of their way from the body into the response."""

from __future__ import annotations

import numpy as np

from trident.core.backends.tensors import Splitter
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.inference.request import InferenceRequest, PackedInputs
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import BY_NAME, Array, layout_of


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


def packed_request(a: list[int], b: float, *, rows: int = 1) -> InferenceRequest:
    """A request for TWO. Its second input is not aligned, because twelve bytes precede it."""
    first, second = np.tile(np.array(a, np.int32), rows), np.tile(np.array([b], np.float64), rows)
    layout = layout_of([("A", "INT32", (rows, 3), first.nbytes), ("B", "FP64", (rows, 1), second.nbytes)])
    return InferenceRequest("m", PackedInputs(layout, memoryview(first.tobytes() + second.tobytes())))


def two_results(count: int) -> list[Array]:
    """The results of TWO for `count` items."""
    return [
        np.arange(3 * count, dtype=np.int32).reshape(count, 3),
        np.arange(count, dtype=np.float64).reshape(count, 1),
    ]


def plain_requests(count: int, outputs: tuple[str, ...] = ()) -> list[InferenceRequest]:
    """Requests without inputs for the outputs `outputs`."""
    return [InferenceRequest("m", [], outputs=outputs) for _ in range(count)]


def packed_responses(count: int, request_id: str = "") -> list[InferenceResponse]:
    """Packed responses of TWO to `count` requests."""
    answers = Splitter(TWO, {}).split(plain_requests(count), [1] * count, two_results(count), count)
    return [InferenceResponse("m", 1, answer, id=request_id) for answer in answers]
