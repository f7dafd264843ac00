"""What runs in the process of a function that has processes of its own: a model of the Python backend around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # of the process of a Python model

from trident.app.library.functions import FunctionModel, failure_of, output_arrays
from trident.core.config.schema import datatype_of


def model_of(function: FunctionModel) -> type:
    """The class that the Python backend makes an instance of."""
    config = function.config
    datatypes = {each.name: found for each in config.output if (found := datatype_of(each.data_type)) is not None}

    def inputs_of(request: Any) -> dict[str, Any]:
        found = {each.name: pb_utils.get_input_tensor_by_name(request, each.name) for each in config.input}
        return {name: tensor.as_numpy() for name, tensor in found.items() if tensor is not None}

    def response(result: dict[str, Any], wanted: list[str]) -> Any:
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, array) for name, array in result.items() if name in wanted]
        )

    def failed(error: Exception) -> Any:
        text = failure_of(error, config.name).message
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))

    def answers(requests: list[Any]) -> Iterator[Any]:
        inputs = [inputs_of(request) for request in requests]
        sizes = [len(next(iter(each.values()))) for each in inputs]
        whole = {name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]}
        result = output_arrays(function.function, function(**whole), datatypes)
        begin = 0
        for request, size in zip(requests, sizes, strict=True):
            rows = {name: array[begin : begin + size] for name, array in result.items()}
            yield response(rows, request.requested_output_names())
            begin += size

    def one_answer(request: Any) -> Any:
        try:
            result = output_arrays(function.function, function(**inputs_of(request)), datatypes)
            return response(result, request.requested_output_names())
        except Exception as error:  # of the user's function
            return failed(error)

    class Batches:
        def execute(self, requests: list[Any]) -> list[Any]:
            if config.max_batch_size and len(requests) > 1:
                try:
                    return list(answers(requests))
                except Exception:  # of the user's function, or inputs of several shapes: each by itself
                    pass
            return [one_answer(request) for request in requests]

    class Streams:
        def execute(self, requests: list[Any]) -> None:
            for request in requests:
                sender = request.get_response_sender()
                try:
                    for result in function(**inputs_of(request)):
                        arrays = output_arrays(function.function, result, datatypes)
                        if request.is_cancelled():
                            break
                        sender.send(response(arrays, request.requested_output_names()))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                except Exception as error:  # of the user's function
                    sender.send(failed(error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    return Streams if config.model_transaction_policy.decoupled else Batches
