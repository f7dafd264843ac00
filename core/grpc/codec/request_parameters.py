"""The parameters of an infer request and of its outputs, which are a `oneof` each.

Source: docs/spec/grpc.md section 3 "Request parameters" and "Outputs".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from core.errors import InvalidRequest
from core.frontend.request_parameters import RESERVED_PREFIX, set_parameter
from core.inference.region_tensors import RegionReference
from core.inference.request import InferenceRequest

if TYPE_CHECKING:
    from core.grpc.messages.schema import InferParameter

EMPTY_FINAL: Final = "triton_enable_empty_final_response"
_REGION: Final = "shared_memory_region"
_OFFSET: Final = "shared_memory_offset"
_BYTE_SIZE: Final = "shared_memory_byte_size"
_CHOICE: Final = "parameter_choice"
_UNSIGNED: Final = 0xFFFF_FFFF_FFFF_FFFF
_CUSTOM: Final = frozenset({"bool_param", "int64_param", "string_param", "double_param"})


def read_parameters(parameters: Mapping[str, InferParameter], request: InferenceRequest) -> bool:
    """Set the parameters in `request`; returns `triton_enable_empty_final_response`. Raises InvalidRequest."""
    empty_final = False
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof(_CHOICE)
        if key == "sequence_id":
            if choice == "int64_param":
                request.correlation_id = parameter.int64_param & _UNSIGNED
            elif choice == "string_param":
                request.correlation_id = parameter.string_param
            else:
                raise _wrong_type(key, "int64_param or string_param.")
        elif key == "sequence_start":
            request.sequence_start = _boolean(key, parameter, choice)
        elif key == "sequence_end":
            request.sequence_end = _boolean(key, parameter, choice)
        elif key == "priority":
            request.priority = _priority(parameter, choice)
        elif key == "timeout":
            if choice != "int64_param":
                raise _wrong_type(key, "int64_param.")
            request.timeout_us = parameter.int64_param & _UNSIGNED
        elif key == EMPTY_FINAL:
            empty_final = _boolean(key, parameter, choice)
        elif key.startswith(RESERVED_PREFIX):
            raise InvalidRequest(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {EMPTY_FINAL}"
            )
        elif choice in _CUSTOM:
            set_parameter(request, key, getattr(parameter, choice))
        else:
            raise _wrong_type(key, "int64_param, bool_param, or string_param.")
    return empty_final


def region_of(parameters: Mapping[str, InferParameter], tensor: str) -> RegionReference | None:
    """The place of a tensor in shared memory; None for a tensor outside. Raises InvalidRequest."""
    region = parameters.get(_REGION)
    if region is not None and region.WhichOneof(_CHOICE) != "string_param":
        raise _wrong_type_of(tensor, _REGION, "string_param.")
    for key in (_OFFSET, _BYTE_SIZE):
        if key not in parameters:
            continue
        if region is None:
            raise InvalidRequest(f"'{key}' can not be specified without '{_REGION}' parameter for tensor '{tensor}'")
        if parameters[key].WhichOneof(_CHOICE) != "int64_param":
            raise _wrong_type_of(tensor, key, "int64_param.")
    if region is None:
        return None
    if _BYTE_SIZE not in parameters:
        raise InvalidRequest(f"'{_BYTE_SIZE}' must be specified along with '{_REGION}' parameter for tensor '{tensor}'")
    offset = parameters[_OFFSET].int64_param & _UNSIGNED if _OFFSET in parameters else 0
    return RegionReference(region.string_param, offset, parameters[_BYTE_SIZE].int64_param & _UNSIGNED)


def classes_of(parameters: Mapping[str, InferParameter]) -> int:
    """How many classes of an output are wanted; 0 for its values. Raises InvalidRequest."""
    if "classification" not in parameters:
        return 0
    parameter = parameters["classification"]
    if parameter.WhichOneof(_CHOICE) != "int64_param":
        raise _wrong_type("classification", "int64_param")
    classes: int = parameter.int64_param
    if classes <= 0:
        raise InvalidRequest("invalid value for 'classification' parameter, expected >= 0")
    return classes


def _boolean(key: str, parameter: InferParameter, choice: str | None) -> bool:
    if choice != "bool_param":
        raise _wrong_type(key, "bool_param.")
    value: bool = parameter.bool_param
    return value


def _priority(parameter: InferParameter, choice: str | None) -> int:
    if choice not in ("int64_param", "uint64_param"):
        raise _wrong_type("priority", "int64_param or uint64_param.")
    priority: int = getattr(parameter, choice)
    if priority < 0:
        raise InvalidRequest("invalid value for 'priority', expected value >= 0.")
    return priority


def _wrong_type(key: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"invalid value type for '{key}' parameter, expected {expected}")


def _wrong_type_of(tensor: str, key: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"invalid value type for '{key}' parameter for tensor '{tensor}', expected {expected}")
