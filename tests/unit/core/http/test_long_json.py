from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.json_texts import damaged, json_text, nested, sizes, values
from trident.core.errors import RequestCancelled
from trident.core.http.body import ELEMENTS, LongAnswer, SlicedArray, Slicing, joined_array, slice_array
from trident.core.inference.tensors import Array

# --- json array


def sliced(text: bytes, size: int, *, whole_elements: bool) -> SlicedArray | None:
    return slice_array(memoryview(text), text.index(b"["), Slicing(size=size), whole_elements=whole_elements)


def flat(value: Any) -> list[Any]:
    return [leaf for element in value for leaf in flat(element)] if isinstance(value, list) else [value]


def parsed(array: SlicedArray) -> list[list[Any]] | None:
    try:
        return [orjson.loads(text) for text in array.texts()]
    except orjson.JSONDecodeError:
        return None


@pytest.mark.slow
@settings(max_examples=200)
@given(text=json_text(nested(values)), size=st.integers(8, 40))
def test_slices_within_elements_have_the_same_leaves(text: bytes, size: int) -> None:
    array = sliced(text, size, whole_elements=False)
    assert array is not None
    assert array.end == len(text)
    slices = parsed(array)
    assert slices is not None
    assert flat(slices) == flat(orjson.loads(text))


@pytest.mark.slow
@settings(max_examples=200)
@given(text=damaged(json_text(nested(values))).filter(lambda text: b"[" in text), size=sizes)
def test_slices_within_elements_are_json_only_if_the_array_is(text: bytes, size: int) -> None:
    text = text[text.index(b"[") :]
    array = sliced(text, size, whole_elements=False)
    if array is not None and parsed(array) is not None:
        orjson.loads(text[: array.end])
        assert array.is_read


@pytest.mark.parametrize(
    "text", ["[1,2,]", "[,1,2]", "[1,,2]", "[[1,2],]", "[[1],[,2]]", "[[1,],[2]]", "[1,2", "[", '["a']
)
@pytest.mark.parametrize("size", range(1, 9))
def test_a_missing_element_is_not_lost_between_slices(text: str, size: int) -> None:
    array = sliced(text.encode(), size, whole_elements=False)
    assert array is None or parsed(array) is None


def test_a_slice_is_about_as_long_as_asked_for() -> None:
    text = json.dumps(list(range(10_000))).encode()
    array = sliced(text, 1000, whole_elements=True)
    assert array is not None
    lengths = [len(part) for part in array.texts()]
    assert max(lengths) <= 1002
    assert len(lengths) <= len(text) / 900
    assert array.is_long
    short, long = ('[1,"' + "x" * length + '",2]' for length in (100, 1000))
    array = sliced(short.encode(), 16, whole_elements=True)
    assert array is not None
    assert max(map(len, array.texts())) > 100
    assert sliced(long.encode(), 16, whole_elements=True) is None


def test_reading_stops_with_the_error_of_the_pause() -> None:
    def pause() -> None:
        raise RequestCancelled("gone")

    with pytest.raises(RequestCancelled):
        slice_array(memoryview(b"[1,2]"), 0, Slicing(pause), whole_elements=True)


# --- joined array


@pytest.mark.parametrize(
    "parts",
    [
        [np.arange(3)],
        [np.arange(3), np.arange(2), np.arange(0)],
        [np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)],
        [np.array([b"a", None], object), np.array([b"b"], object)],
        [np.array([1]), np.array([2.5])],
        [np.array(["a"]), np.array(["bcd"])],
    ],
)
def test_it_is_what_numpy_joins(parts: list[Array]) -> None:
    joined, expected = joined_array(parts), np.concatenate(parts)
    assert (joined.dtype, joined.tolist()) == (expected.dtype, expected.tolist())


# --- long answer


def written(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize("count", [0, 1, ELEMENTS - 1, ELEMENTS, ELEMENTS + 1, 2 * ELEMENTS, 3 * ELEMENTS + 7])
def test_the_text_is_that_of_the_whole_document(count: int) -> None:
    numbers, texts = np.arange(count) / 7, np.array([f"text {i}" for i in range(count)], object)
    long = LongAnswer()
    document = {"a": [long.add(numbers, lambda part: part)], "b": long.add(texts, lambda part: part.tolist()), "c": 1}
    parts = list(long.texts(document, written))
    assert b"".join(parts) == written({"a": [numbers], "b": texts.tolist(), "c": 1})
    assert max(map(len, parts)) < 25 * ELEMENTS


def test_an_error_of_the_writer_is_raised() -> None:
    long = LongAnswer()
    document = [long.add(np.array([b"no text"], object), lambda part: part.tolist())]
    with pytest.raises(TypeError):
        list(long.texts(document, written))
