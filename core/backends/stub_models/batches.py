"""Batches for the models of this folder, which run frameworks in the process of a Python model.

The inputs of all requests together, as arrays or as tensors of PyTorch, and their responses. These modules import
nothing of the server but the library of Python models, so that they run in any environment with their framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from trident_stub.inference import InferenceRequest, InferenceResponse
from trident_stub.model import TritonError
from trident_stub.tensor import Tensor

Array = np.ndarray[Any, Any]


def gathered(requests: Sequence[InferenceRequest]) -> dict[str, Array]:
    """An array for each input, by name: those of all requests, one after the other along the first dimension."""
    columns = {tensor.name(): [tensor.as_numpy()] for tensor in requests[0].inputs()}
    for request in requests[1:]:
        for tensor in request.inputs():
            columns[tensor.name()].append(tensor.as_numpy())
    return {name: arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for name, arrays in columns.items()}


def torch_tensors(requests: Sequence[InferenceRequest], device: str) -> dict[str, Any]:
    """As `gathered`, tensors of PyTorch on `device`."""
    import torch

    # A model may write into its inputs, and those of a single request are read-only memory of the server.
    copies = len(requests) == 1
    arrays = gathered(requests)
    return {name: torch.from_numpy(np.array(each) if copies else each).to(device) for name, each in arrays.items()}


def torch_device(args: Mapping[str, str]) -> str:
    return f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"


def responses(
    requests: Sequence[InferenceRequest], arrays: Mapping[str, Array], batching: bool
) -> list[InferenceResponse]:
    """A response for each request with the outputs that it wants; `arrays` are those of the batch, by name."""
    made, start = [], 0
    for request in requests:
        rows = len(request.inputs()[0].as_numpy()) if batching else 0
        wanted = request.requested_output_names()
        tensors = [
            Tensor(name, array[start : start + rows] if batching else array)
            for name, array in arrays.items()
            if name in wanted
        ]
        made.append(InferenceResponse(output_tensors=tensors))
        start += rows
    return made


def failed(requests: Sequence[InferenceRequest], message: str) -> list[InferenceResponse]:
    """The same error for each request; the server runs them again, each alone."""
    return [InferenceResponse(error=TritonError(message)) for _ in requests]
