from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.http.payloads.payload_models import RULES, model, one
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.json import decode_instances
from trident.core.http.payloads.payload import DecodeRules, instance_name

TWO = model({"A": ("FP32", (2,)), "B": ("BYTES", (1,))}, optional="B")


def test_objects_may_have_inputs_in_any_order() -> None:
    payload = decode_instances([{"A": [1, 2], "B": "x"}, {"B": "y", "A": [3, 4]}], TWO, RULES, instance_name)
    assert payload.arrays["A"].tolist() == [[1, 2], [3, 4]]
    assert payload.arrays["B"].tolist() == [[b"x"], [b"y"]]
    assert (payload.count, payload.stacked) == (2, True)


def test_all_instances_may_omit_an_optional_input() -> None:
    assert list(decode_instances([{"A": [1, 2]}], TWO, RULES, instance_name).arrays) == ["A"]


def test_one_input_takes_values_or_objects() -> None:
    for instances in ([[1, 2]], [{"IN": [1, 2]}]):
        assert decode_instances(instances, one("FP32", 2), RULES, instance_name).arrays["IN"].tolist() == [[1, 2]]


def test_an_object_of_base64_is_a_value_unless_an_input_has_that_name() -> None:
    assert decode_instances([{"b64": "YWI="}], one("BYTES", 1), RULES, instance_name).arrays["IN"].tolist() == [[b"ab"]]
    spec = model({"b64": ("FP32", (1,))})
    assert decode_instances([{"b64": 1}], spec, RULES, instance_name).arrays["b64"].tolist() == [[1]]


def test_a_key_is_ignored_unless_an_input_has_that_name() -> None:
    rules = DecodeRules(ignored_fields=frozenset({"key"}))
    instances = [{"key": 7, "IN": 1}, {"IN": 2}]
    assert decode_instances(instances, one("FP32", 1), rules, instance_name).arrays["IN"].tolist() == [[1], [2]]
    spec = model({"key": ("FP32", (1,))})
    assert decode_instances([{"key": 7}], spec, rules, instance_name).arrays["key"].tolist() == [[7]]


def test_without_a_batch_dimension_instances_are_separate() -> None:
    payload = decode_instances([[1, 2], [3, 4]], one("FP32", 2, batch=0), RULES, instance_name)
    assert (payload.count, payload.stacked) == (2, False)


APART = model({"A": ("FP32", (-1,)), "B": ("INT64", ())}, batch=0)


def test_separate_instances_may_have_different_shapes() -> None:
    instances = [{"A": [], "B": 1}, {"A": [1, 2], "B": 2}, {"A": {"b64": "AACAPw=="}, "B": 3}]
    payload = decode_instances(instances, APART, RULES, instance_name)
    assert (payload.arrays, payload.count, payload.stacked) == ({}, 3, False)
    assert payload.rows is not None
    assert [(row["A"].tolist(), row["B"].tolist()) for row in payload.rows] == [([], 1), ([1, 2], 2), ([1], 3)]
    assert {(row["A"].ndim, row["A"].dtype.name, row["B"].shape) for row in payload.rows} == {(1, "float32", ())}


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([{"A": [1], "B": 1}, {"A": [1, "x"], "B": 1}], r"^instance 1, input 'A', element \[1\]: expected a number"),
        ([{"A": [1], "B": 1}, {"A": 5, "B": 1}], "^instance 1, input 'A': expected a list, got 5"),
        ([{"A": [1], "B": 1}, {"A": [1, 2], "B": "x"}], "^instance 1, input 'B': expected an integer"),
        (
            [{"A": [1], "B": 1}, {"A": {"b64": "AAAA"}, "B": 1}],
            "^instance 1, input 'A': expected a multiple of 4 bytes",
        ),
    ],
)
def test_an_error_in_a_separate_instance_names_it(instances: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode_instances(instances, APART, RULES, instance_name)


@pytest.mark.parametrize(("instances", "stacked"), [([[1, 2], [3, 4]], True), ([[[1, 2]], [[3, 4]]], False)])
def test_instances_are_stacked_along_the_models_own_batch_dimension(instances: list[Any], stacked: bool) -> None:
    payload = decode_instances(instances, one("FP32", -1, 2, batch=0), RULES, instance_name)
    assert payload.stacked is stacked


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([], "there are no instances"),
        ([[1, 2]], "instance 0: expected an object with the inputs 'A', 'B', got a list"),
        (
            [{"A": [1, 2]}, [1, 2]],
            "instance 1: expected an object with a value by input name, like the others, got a list",
        ),
        ([1, {"A": [1, 2]}], "instance 0: expected an object with a value by input name, like the others, got 1"),
        ([{"b64": ""}], "instance 0: 'b64' is not an input of model 'm', whose inputs are 'A', 'B'"),
        ([{"A": [1, 2]}, {"A": [1, 2], "C": 1}], "instance 1: 'C' is not an input"),
        ([{"A": [1, 2]}, {"A": [1, 2], "B": "x"}], "instance 1 has 'B' and instance 0 has not"),
        ([{"A": [1, 2], "B": "x"}, {"A": [1, 2]}], "instance 0 has 'B' and instance 1 has not"),
        ([{"A": [1, 2]}, {"B": "x"}], "instance 1: input 'A' is missing"),
        ([{"A": [1, 2]}, {}], "instance 1: input 'A' is missing"),
        ([{}], "instance 0: input 'A' is missing"),
        ([{"A": [1, 2]}, {"A": [1]}], "instance 1, input 'A': expected a list of 2, got one of 1"),
        ([{"A": [1, 2], "B": 5}], "instance 0, input 'B', element [0]: expected a string"),
    ],
)
def test_an_error_names_the_instance(instances: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_instances(instances, TWO, RULES, instance_name)
    assert message in caught.value.message


def test_objects_and_values_of_one_input_do_not_mix() -> None:
    with pytest.raises(InvalidRequest, match="instance 0: expected an object with a value by input name"):
        decode_instances([[1, 2], {"IN": [1, 2]}], one("FP32", 2), RULES, instance_name)
