"""Messages for the models of `tests.unit.fake_engine`, which echo the input IN as OUT."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse

from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor


def infer_request(identifier: str = "", model: str = "simple", *, count: int = 4, **fields: Any) -> bytes:
    """A request with the numbers from 0."""
    request = ModelInferRequest(model_name=model, id=identifier, **fields)
    request.inputs.add(name="IN", datatype="INT32", shape=[count])
    request.raw_input_contents.append(np.arange(count, dtype=np.int32).tobytes())
    return bytes(request.SerializeToString())


def echo(request: InferenceRequest) -> InferenceResponse:
    """The response of a model that echoes its input."""
    tensor = request.inputs[0]
    array = np.frombuffer(tensor.data, np.int32)
    output = OutputTensor("OUT", "INT32", tensor.shape, array)
    return InferenceResponse(request.model_name, 3, [output], id=request.id)


def infer_response(message: bytes) -> Any:
    return ModelInferResponse.FromString(message)


def stream_response(message: bytes) -> Any:
    return ModelStreamInferResponse.FromString(message)


def numbers(response: Any) -> list[int]:
    """The numbers of a ModelInferResponse."""
    return list(np.frombuffer(response.raw_output_contents[0], np.int32))
