"""Batches of requests as tensors of PyTorch, and results as their responses."""

from __future__ import annotations

import numpy as np
import torch
import triton_python_backend_utils as pb_utils


def gathered(requests, device):
    """A tensor for each input, by name: those of all requests, one after the other along the first dimension."""
    columns = {tensor.name(): [tensor.as_numpy()] for tensor in requests[0].inputs()}
    for request in requests[1:]:
        for tensor in request.inputs():
            columns[tensor.name()].append(tensor.as_numpy())
    return {name: _tensor(arrays, device) for name, arrays in columns.items()}


def responses(requests, arrays, batching):
    """A response for each request with the outputs that it wants; `arrays` are those of the batch, by name."""
    made, start = [], 0
    for request in requests:
        rows = len(request.inputs()[0].as_numpy()) if batching else 0
        wanted = set(request.requested_output_names())
        tensors = [
            pb_utils.Tensor(name, array[start : start + rows] if batching else array)
            for name, array in arrays.items()
            if name in wanted
        ]
        made.append(pb_utils.InferenceResponse(output_tensors=tensors))
        start += rows
    return made


def failed(requests, message):
    """The same error for each request; the server runs them again, each alone."""
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError(message)) for _ in requests]


def device_of(args):
    """The device of an instance, as PyTorch names it."""
    return f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"


def _tensor(arrays, device):
    # A model may write into its inputs, which are read-only memory of the server.
    array = np.concatenate(arrays) if len(arrays) > 1 else np.array(arrays[0])
    return torch.from_numpy(array).to(device)
