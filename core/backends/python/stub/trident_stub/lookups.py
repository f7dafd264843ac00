"""Tensors and their configurations by name, and what a configuration says of responses.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

from typing import Any

from .inference_request import InferenceRequest
from .inference_response import InferenceResponse
from .tensor import Tensor


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input of that name; None if the request has none."""
    for tensor in inference_request._inputs:
        if tensor._name == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output of that name; None if the response has none."""
    for tensor in inference_response._outputs:
        if tensor._name == name:
            return tensor
    return None


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of an input, from the parsed `args["model_config"]`; None if no name matches."""
    return _by_name(model_config.get("input", []), name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of an output, from the parsed `args["model_config"]`; None if no name matches."""
    return _by_name(model_config.get("output", []), name)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether the model may answer a request any number of times."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def _by_name(tensors: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    for tensor in tensors:
        if tensor["name"] == name:
            return tensor
    return None
