"""The parameters of an infer request that mean something in the v2 protocol, and those that are the model's own.

Source: docs/spec/http.md section 4 (`parameters`) and section 6 (forwarded headers).
"""

from __future__ import annotations

from typing import Any

from core.errors import InvalidRequest
from core.inference.request import InferenceRequest, Parameter

NON_STRING = "attempt to access JSON non-string as string"
NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
_NON_BOOLEAN = "attempt to access JSON non-boolean as boolean"
_MAX_RANK = 64  # numpy's
RESERVED_PREFIX = "triton_"
RESERVED_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)


def read_parameters(parameters: Any, request: InferenceRequest) -> bool:
    """Set the parameters in `request`; returns `binary_data_output`. Raises InvalidRequest."""
    if type(parameters) is not dict:
        raise InvalidRequest("failed to get request params.: attempt to get members for non-object")
    binary = False
    for key, value in parameters.items():
        if key == "binary_data_output":
            binary = boolean(key, value)
        elif key == "priority":
            request.priority = unsigned(key, value)
        elif key == "timeout":
            request.timeout_us = unsigned(key, value)
        elif key == "sequence_id":
            if type(value) is not str and not (type(value) is int and value >= 0):
                raise unable(key, NON_STRING)  # Triton tries a string last
            request.correlation_id = value
        elif key == "sequence_start":
            request.sequence_start = boolean(key, value)
        elif key == "sequence_end":
            request.sequence_end = boolean(key, value)
        else:
            _read_custom_parameter(key, value, request)
    return binary


def set_parameter(request: InferenceRequest, key: str, value: Parameter) -> None:
    """Give the model a parameter of its own."""
    if request.parameters is None:
        request.parameters = {}
    request.parameters[key] = value


def set_custom_parameter(request: InferenceRequest, key: str, value: Any) -> None:
    """As `set_parameter`, for a JSON value of any type. Raises InvalidRequest unless a parameter can hold it."""
    if not isinstance(value, str | int | float):
        raise InvalidRequest(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
    set_parameter(request, key, value)


def forward_header(request: InferenceRequest, name: str, value: str) -> None:
    """Make a request header a string parameter of the request, under the name received. Raises InvalidRequest."""
    if name in RESERVED_PARAMETERS or name.startswith(RESERVED_PREFIX):
        raise InvalidRequest(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
    set_parameter(request, name, value)


def unable(field: str, reason: str) -> InvalidRequest:
    """The error for a field of the wrong JSON type."""
    return InvalidRequest(f"Unable to parse '{field}': {reason}")


def check_rank(rank: int) -> None:
    """Raise InvalidRequest for more dimensions than any model has: their product alone would take seconds."""
    if rank > _MAX_RANK:
        raise unable("shape", f"{rank} dimensions are more than the maximum of {_MAX_RANK}")


def unsigned(field: str, value: Any) -> int:
    """`value` if it is a number from 0. Raises InvalidRequest."""
    if type(value) is not int or value < 0:
        raise unable(field, NON_UNSIGNED)
    return value


def boolean(field: str, value: Any) -> bool:
    """`value` if it is a boolean. Raises InvalidRequest."""
    if type(value) is not bool:
        raise unable(field, _NON_BOOLEAN)
    return value


def _read_custom_parameter(key: str, value: Any, request: InferenceRequest) -> None:
    if key.startswith(RESERVED_PREFIX):
        raise InvalidRequest(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
        )
    set_custom_parameter(request, key, value)
