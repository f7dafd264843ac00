"""Batches of requests as tensors of PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from trident_stub.batches import gathered


def tensors_of(requests, device):
    """A tensor on `device` for each input, by name."""
    # A model may write into its inputs, and those of a single request are read-only memory of the server.
    copies = len(requests) == 1
    arrays = gathered(requests)
    return {name: torch.from_numpy(np.array(each) if copies else each).to(device) for name, each in arrays.items()}


def device_of(args):
    """The device of an instance, as PyTorch names it."""
    return f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"
