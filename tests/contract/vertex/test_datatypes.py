"""Every datatype in instances, in predictions and as raw bytes, over the container's socket."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.contract.vertex.vertex_container import VertexContainer
from tests.contract.vertex.vertex_models import DATATYPES, WIDTH, identity_name, serving
from trident.core.inference.tensors import BY_NAME

pytestmark = pytest.mark.slow

FLOATING = ("FP16", "FP32", "FP64", "BF16")
NOT_FINITE = ["NaN", "Infinity", "-Infinity"]


@pytest.fixture(scope="module")
def container(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    with serving(tmp_path_factory) as made:
        yield made


def limits(datatype: str) -> tuple[int, int]:
    found = np.iinfo(BY_NAME[datatype].dtype)
    return int(found.min), int(found.max)


def b64(content: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(content).decode()}


def rows_of(datatype: str) -> list[list[Any]]:
    """Two instances with the extremes of the datatype."""
    if datatype == "BOOL":
        return [[True, False, True], [False, False, True]]
    if datatype == "BYTES":
        return [["", "text", "Grüße 🌍"], ["a\x00b", '"', "\\"]]
    if datatype in FLOATING:
        return [[0.0, -1.5, 1024.0], [0.25, 3.0, -2.0]]
    low, high = limits(datatype)
    return [[low, high, 0], [1, 2, 3]]


def raw(datatype: str, row: list[Any]) -> bytes:
    """The row as little-endian bytes."""
    if datatype == "BF16":
        return np.array(row, "<f4").view("<u2")[1::2].tobytes()
    return np.array(row, BY_NAME[datatype].dtype.newbyteorder("<")).tobytes()


def ask(container: VertexContainer, datatype: str, instances: list[Any]) -> list[Any]:
    return container.predictions(instances, model=identity_name(datatype))


def refused(container: VertexContainer, datatype: str, instances: list[Any]) -> str:
    answer = container.post({"instances": instances, "parameters": {"model": identity_name(datatype)}})
    assert answer.status == 400, answer.body
    return answer.error


@pytest.mark.parametrize("datatype", DATATYPES)
def test_values_come_back_as_they_were(container: VertexContainer, datatype: str) -> None:
    rows = rows_of(datatype)
    answered = ask(container, datatype, [{"INPUT0": row} for row in rows])
    assert json.dumps(answered) == json.dumps(rows)  # the types too: true is not 1, and 1.0 is not 1


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "BYTES"])
def test_raw_bytes_are_the_elements(container: VertexContainer, datatype: str) -> None:
    rows = rows_of(datatype)
    assert json.dumps(ask(container, datatype, [b64(raw(datatype, row)) for row in rows])) == json.dumps(rows)


@pytest.mark.parametrize("datatype", ["UINT8", "FP16", "INT32", "FP64"])  # one for each size of an element
def test_raw_bytes_of_a_wrong_length_name_the_instance(container: VertexContainer, datatype: str) -> None:
    good = raw(datatype, rows_of(datatype)[0])
    for bad in (good[:-1], good + b"\0"):
        text = refused(container, datatype, [b64(good), b64(bad)])
        assert text == f"instance 1, input 'INPUT0': expected {len(good)} bytes, got {len(bad)}"


@pytest.mark.parametrize("datatype", FLOATING)
def test_nan_and_infinity_are_strings_both_ways(container: VertexContainer, datatype: str) -> None:
    assert ask(container, datatype, [NOT_FINITE, [1.0, "NaN", 2.0]]) == [NOT_FINITE, [1.0, "NaN", 2.0]]
    numbers = [float(text) for text in NOT_FINITE]
    assert ask(container, datatype, [b64(raw(datatype, numbers))]) == [NOT_FINITE]


def test_bare_nan_and_infinity_are_read(container: VertexContainer) -> None:
    """Python's json module writes them so. The answer has strings."""
    body = f'{{"instances":[[NaN,Infinity,-Infinity]],"parameters":{{"model":"{identity_name("FP32")}"}}}}'
    assert container.post(body.encode()).document == {"predictions": [NOT_FINITE]}


@pytest.mark.parametrize("text", ["nan", "+Infinity", "1", ""])
def test_no_other_string_is_a_number(container: VertexContainer, text: str) -> None:
    error = refused(container, "FP32", [[1, 2, 3], [1, text, 3]])
    assert error.startswith("instance 1, input 'INPUT0', element [1]: expected a number that FP32 can hold, ")


@pytest.mark.parametrize(("datatype", "number"), [("FP16", 1e5), ("FP32", 1e39), ("BF16", -3.5e38)])
def test_number_that_would_become_infinite_is_refused(container: VertexContainer, datatype: str, number: float) -> None:
    error = refused(container, datatype, [[0, 0, number]])
    assert error.startswith(f"instance 0, input 'INPUT0', element [2]: expected a number that {datatype} can hold")


@pytest.mark.parametrize("datatype", FLOATING)
def test_fractions_are_rounded_to_the_nearest_value(container: VertexContainer, datatype: str) -> None:
    (answered,) = ask(container, datatype, [[0.1, 1 / 3, 1e-3]])
    bits = 8 if datatype == "BF16" else np.finfo(BY_NAME[datatype].dtype).nmant + 1
    for number, sent in zip(answered, [0.1, 1 / 3, 1e-3], strict=True):
        assert abs(number - sent) <= sent * 2.0**-bits


@pytest.mark.parametrize("datatype", ["INT8", "INT64", "UINT64"])
def test_integers_neither_wrap_nor_lose_a_digit(container: VertexContainer, datatype: str) -> None:
    low, high = limits(datatype)
    for wrong in (low - 1, high + 1, 10**30, 1.5, True, None, "1", [1], {}):
        error = refused(container, datatype, [[1, 2, 3], [1, 2, wrong]])
        assert error.startswith("instance 1, input 'INPUT0', element [2]: expected an integer from "), wrong
    assert ask(container, datatype, [[1.0, 2, 3e0]]) == [[1, 2, 3]]
    assert ask(container, datatype, [[high - 1, low + 1, high]]) == [[high - 1, low + 1, high]]


def test_only_true_and_false_are_booleans(container: VertexContainer) -> None:
    for wrong in (1, 0.0, "true", None, []):
        error = refused(container, "BOOL", [[True, wrong, False]])
        assert error.startswith("instance 0, input 'INPUT0', element [1]: expected true or false, got ")


def test_raw_booleans_are_0_or_1(container: VertexContainer) -> None:
    assert "instance 0, input 'INPUT0': expected bytes that are 0 or 1" in refused(container, "BOOL", [b64(b"\0\1\2")])


def test_bytes_are_text_if_they_are_utf_8(container: VertexContainer) -> None:
    sent = [b64(b"\xff\xfe"), b64(b"text"), b64(b"")]
    assert ask(container, "BYTES", [sent]) == [[b64(b"\xff\xfe"), "text", ""]]
    assert ask(container, "BYTES", [{"INPUT0": sent}]) == [[b64(b"\xff\xfe"), "text", ""]]


def test_element_of_bytes_is_text_or_base64(container: VertexContainer) -> None:
    for wrong in (1, 1.5, True, None, [], {}, {"b64": 1}, {"b64": "A"}, {"b64": "AA==", "x": 1}):
        error = refused(container, "BYTES", [["a", "b", "c"], ["a", "b", wrong]])
        assert error.startswith("instance 1, input 'INPUT0', element [2]")


@pytest.mark.parametrize("datatype", ["FP32", "BOOL", "BYTES"])
def test_instances_of_several_batches_keep_their_order(container: VertexContainer, datatype: str) -> None:
    first, second = rows_of(datatype)
    rows = [first, second, second, first] * 10 + [second]
    assert len(rows[0]) == WIDTH
    assert ask(container, datatype, rows) == rows
