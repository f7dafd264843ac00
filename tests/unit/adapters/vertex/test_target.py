"""The model, version and outputs that a document names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trident.adapters.vertex.predict import DEFAULT_TARGET, Target, names_model, read_target, take_target
from trident.core.errors import InvalidRequest
from trident.core.http.long_json import SLICE


def test_the_targets_members_leave_the_parameters() -> None:
    parameters = {"model": "cat", "version": 2, "outputs": ["B", "A", "B"], "id": "7", "stream": True, "other": 1.5}
    assert take_target(parameters) == Target("cat", 2, ("B", "A"), "7", True)
    assert parameters == {"other": 1.5}
    assert take_target({}) == DEFAULT_TARGET


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({"model": ""}, Target()),
        ({"outputs": "A"}, Target(outputs=("A",))),
        ({"outputs": []}, Target()),
        ({"version": -1}, Target()),
        ({"version": 0}, Target(version=0)),
        ({"version": "007"}, Target(version=7)),
        ({"version": 3.0}, Target(version=3)),
        ({"version": 2**63 - 1}, Target(version=2**63 - 1)),
        ({"stream": False}, Target()),
    ],
)
def test_valid_members_give_a_target(given: dict[str, Any], target: Target) -> None:
    assert take_target(given) == target


@pytest.mark.parametrize("value", [None, True, 5, 1.5, [], {}, ["a"], {"a": "b"}])
@pytest.mark.parametrize(("name", "expected"), [("model", "the name of a model"), ("id", "a string")])
def test_members_that_are_not_strings_are_refused(name: str, expected: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=rf"^'parameters\.{name}': expected {expected}, got "):
        take_target({name: value})


@pytest.mark.parametrize(
    "value", [None, True, 1.5, float("nan"), -2, 2**63, "", "-1", "x", "1.0", "٣", "9" * 50, [], {}]
)
def test_invalid_versions_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^'parameters\.version': expected the number of a version, got "):
        take_target({"version": value})


@pytest.mark.parametrize("value", [None, True, 1, {}, [1], ["A", None], [["A"]]])
def test_invalid_outputs_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^'parameters\.outputs': expected a list of names of outputs, got "):
        take_target({"outputs": value})


@pytest.mark.parametrize("value", [None, 0, 1, "true", [], {}])
def test_an_invalid_stream_flag_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^'parameters\.stream': expected true or false, got "):
        take_target({"stream": value})


def test_doubles_are_accepted_for_whole_numbers() -> None:
    parameters: dict[str, Any] = {
        "priority": 1.0,
        "timeout": 5e6,
        "sequence_id": 42.0,
        "other": 1.0,
        "sequence_start": True,
    }
    take_target(parameters)
    assert json.dumps(parameters) == json.dumps(
        {"priority": 1, "timeout": 5000000, "sequence_id": 42, "other": 1.0, "sequence_start": True}
    )
    parameters = {"priority": 1.5, "timeout": "x", "sequence_id": "a"}
    take_target(parameters)
    assert parameters == {"priority": 1.5, "timeout": "x", "sequence_id": "a"}


NAMING = [
    b'{"instances":[1],"parameters":{"model":"m"}}',
    b'{"parameters" : {"a":1,"version"\n:2},"instances":[1]}',
    b'{"instances":[1],"parameters":{"m\\u006fdel":"m"}}',
    b'{"instances":[1],"p\\u0061rameters":{"model":"m"}}',
    b'{"instances":[1],"parameters":{"\\u0076ersion":2}}',
]


@pytest.mark.parametrize("body", NAMING)
def test_a_document_that_names_a_model_is_found(body: bytes) -> None:
    assert names_model(body)
    assert names_model(memoryview(body))
    assert read_target(body) != DEFAULT_TARGET


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"instances":[[1,2]]}',
        b'{"instances":[1],"parameters":{"a":1}}',
        b'{"instances":[{"model":"x"}]}',
        b"\xff\xfe",
    ],
)
def test_a_document_that_names_no_model_is_skipped(body: bytes) -> None:
    assert not names_model(body)


@pytest.mark.parametrize(
    "body", [b"5", b"[]", b"{}", b'{"parameters":null}', b'{"parameters":[1]}', b'{"parameters":"model"}']
)
def test_a_document_without_parameters_has_the_default_target(body: bytes) -> None:
    assert read_target(body) == DEFAULT_TARGET


def test_malformed_json_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="failed to parse"):
        read_target(b'{"parameters":{"model":')


@pytest.mark.parametrize("before", range(SLICE - 20, SLICE + 2, 3))
def test_a_long_document_names_its_model(before: int) -> None:
    text = '{"instances":["' + "x" * before + '","' + "y" * SLICE + '"],"parameters":{"model":"cat"}}'
    body = text.encode()
    assert names_model(body)
    assert read_target(body) == Target("cat")
    assert not names_model(body.replace(b"model", b"other"))
    with pytest.raises(InvalidRequest, match="failed to parse"):
        read_target(body[:-1])
