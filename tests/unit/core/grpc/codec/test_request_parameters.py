from __future__ import annotations

from typing import Any

import pytest

from trident.core.errors import InvalidRequest
from trident.core.grpc.request import classes_of, read_parameters, region_of
from trident.core.grpc.schema import InferParameter
from trident.core.inference.request import InferenceRequest


def parameters(**values: dict[str, Any]) -> dict[str, Any]:
    return {key: InferParameter(**value) for key, value in values.items()}


def read(**values: dict[str, Any]) -> tuple[InferenceRequest, bool]:
    request = InferenceRequest("m", [])
    return request, read_parameters(parameters(**values), request)


def test_the_parameters_of_the_protocol() -> None:
    request, empty_final = read(
        sequence_id={"string_param": "s"},
        sequence_start={"bool_param": True},
        sequence_end={"bool_param": True},
        priority={"uint64_param": 2**64 - 1},
        timeout={"int64_param": 5},
        triton_enable_empty_final_response={"bool_param": True},
    )
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == ("s", True, True)
    assert (request.priority, request.timeout_us) == (2**64 - 1, 5)
    assert request.parameters is None
    assert empty_final


def test_signed_numbers_where_unsigned_ones_are_meant() -> None:
    request, empty_final = read(
        sequence_id={"int64_param": -1}, priority={"int64_param": 3}, timeout={"int64_param": -1}
    )
    assert (request.correlation_id, request.priority, request.timeout_us) == (2**64 - 1, 3, 2**64 - 1)
    assert not empty_final


def test_all_other_parameters_are_the_models() -> None:
    request, _ = read(
        binary_data_output={"bool_param": True},
        headers={"string_param": ""},
        i={"int64_param": 0},
        d={"double_param": 1.5},
    )
    assert request.parameters == {"binary_data_output": True, "headers": "", "i": 0, "d": 1.5}


OTHER_TYPE = "invalid value type for '{}' parameter, expected "
RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
    "'triton_' are allowed: triton_enable_empty_final_response"
)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("sequence_id", {"bool_param": True}, OTHER_TYPE + "int64_param or string_param."),
        ("sequence_start", {"int64_param": 1}, OTHER_TYPE + "bool_param."),
        ("sequence_end", {}, OTHER_TYPE + "bool_param."),
        ("priority", {"string_param": "1"}, OTHER_TYPE + "int64_param or uint64_param."),
        ("priority", {"int64_param": -1}, "invalid value for 'priority', expected value >= 0."),
        ("timeout", {"uint64_param": 1}, OTHER_TYPE + "int64_param."),
        ("triton_enable_empty_final_response", {"string_param": ""}, OTHER_TYPE + "bool_param."),
        ("triton_x", {"bool_param": True}, RESERVED),
        ("mine", {"uint64_param": 1}, OTHER_TYPE + "int64_param, bool_param, or string_param."),
        ("mine", {}, OTHER_TYPE + "int64_param, bool_param, or string_param."),
    ],
)
def test_a_wrong_parameter_has_tritons_text(key: str, value: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(**{key: value})
    assert str(refusal.value) == text.format(key)


REGION = {"shared_memory_region": {"string_param": "r"}}
SIZE = {"shared_memory_byte_size": {"int64_param": 4}}


def test_the_region_of_a_tensor() -> None:
    assert region_of(parameters(), "T") is None
    assert region_of(parameters(**REGION, **SIZE), "T") == ("r", 0, 4)
    assert region_of(parameters(**REGION, **SIZE, shared_memory_offset={"int64_param": 1}), "T") == ("r", 1, 4)
    # As in Triton, a negative number is a huge one, which no region has room for.
    negative = parameters(**REGION, **SIZE, shared_memory_offset={"int64_param": -1})
    assert region_of(negative, "T") == ("r", 2**64 - 1, 4)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"shared_memory_region": {"int64_param": 1}},
            "invalid value type for 'shared_memory_region' parameter for tensor 'T', expected string_param.",
        ),
        (
            REGION,
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'T'",
        ),
        (
            SIZE,
            "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'T'",
        ),
        (
            {"shared_memory_offset": {"int64_param": 0}},
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'T'",
        ),
        (
            REGION | {"shared_memory_byte_size": {"uint64_param": 4}},
            "invalid value type for 'shared_memory_byte_size' parameter for tensor 'T', expected int64_param.",
        ),
    ],
)
def test_a_wrong_region_has_tritons_text(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        region_of(parameters(**values), "T")
    assert str(refusal.value) == text


def test_the_classes_of_an_output() -> None:
    assert classes_of(parameters()) == 0
    assert classes_of(parameters(classification={"int64_param": 3})) == 3
    with pytest.raises(InvalidRequest, match="invalid value type for 'classification' parameter, expected int64_param"):
        classes_of(parameters(classification={"uint64_param": 3}))
    for wrong in (0, -1):
        with pytest.raises(InvalidRequest, match="invalid value for 'classification' parameter, expected >= 0"):
            classes_of(parameters(classification={"int64_param": wrong}))
