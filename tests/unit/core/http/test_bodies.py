from __future__ import annotations

import gzip
import io

# --- request body
import json
import tracemalloc
import zlib
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.json_texts import damaged, json_text, nested, sizes, values
from trident.core.errors import InvalidRequest, RequestCancelled
from trident.core.http.body import (
    ELEMENTS,
    LongAnswer,
    SlicedArray,
    Slicing,
    choose_encoding,
    decompress,
    joined_array,
    read_body,
    read_object,
    read_parameters,
    slice_array,
)
from trident.core.inference.tensors import Array


def environ(content: bytes, **more: Any) -> dict[str, Any]:
    return {"wsgi.input": io.BytesIO(content), "CONTENT_LENGTH": str(len(content)), **more}


def chunked(content: bytes) -> dict[str, Any]:
    return {"wsgi.input": io.BytesIO(content), "wsgi.input_terminated": True}


def test_a_body_is_read_up_to_the_limit_and_its_announced_length() -> None:
    assert read_body(environ(b"12345"), 5) == b"12345"
    assert read_body(chunked(b"12345"), 5) == b"12345"
    assert read_body(environ(b"12345", CONTENT_LENGTH="2"), 100) == b"12"
    assert read_body({"wsgi.input": io.BytesIO(b"next request")}, 100) == b""


@pytest.mark.parametrize("given", [environ(b"123456"), chunked(b"123456"), environ(b"", CONTENT_LENGTH="9" * 19)])
def test_a_larger_body_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="exceeds the maximum allowed input size of 5 bytes") as refused:
        read_body(given, 5)
    assert refused.value.message.endswith("Use --http-max-input-size to increase the limit.")


def test_a_body_is_an_object_with_parameters_if_there_are_any() -> None:
    assert read_object(environ(b""), 100) == {}
    assert read_parameters(environ(b""), 100) == {}
    assert read_object(environ(b'{"a":1}'), 100) == {"a": 1}
    assert read_parameters(environ(b'{"parameters":{"a":1}}'), 100) == {"a": 1}
    with pytest.raises(InvalidRequest, match=r"^Unable to parse 'parameters': "):
        read_parameters(environ(b'{"parameters":[]}'), 100)


# --- compression


TEXT = b"a body, a body, a body" * 50
PACKED = {"gzip": gzip.compress(TEXT, mtime=0), "deflate": zlib.compress(TEXT)}


@pytest.mark.parametrize("container", ["gzip", "deflate"])
def test_exactly_the_limit_is_accepted(container: str) -> None:
    assert decompress(PACKED[container], container, len(TEXT)) == TEXT
    with pytest.raises(InvalidRequest) as refused:
        decompress(PACKED[container], container, len(TEXT) - 1)
    assert refused.value.message == (
        f"Decompressed data size exceeds the maximum allowed value of {len(TEXT) - 1} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.slow
def test_a_bomb_is_not_inflated_beyond_the_limit() -> None:
    bomb = zlib.compress(bytes(200_000_000), 9)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="Decompressed data size exceeds"):
            decompress(bomb, "deflate", 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_an_empty_or_corrupted_body_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^nothing to be decompressed$"):
        decompress(b"", "gzip", 10)
    assert decompress(zlib.compress(b""), "deflate", 10) == b""
    broken = bytearray(PACKED["gzip"])
    broken[-6] ^= 1
    with pytest.raises(InvalidRequest, match="incorrect data check"):
        decompress(broken, "gzip", 10_000)


@pytest.mark.parametrize(
    "body", [b"notgzip", PACKED["gzip"][:-1], PACKED["deflate"][:20], PACKED["gzip"] + b"x", PACKED["gzip"] * 2]
)
def test_broken_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^failed to decompress the request body: "):
        decompress(body, "gzip", 10_000)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("", "identity"),
        ("gzip, deflate", "gzip"),
        ("*", "identity"),
        ("gzip;q=0", "identity"),
        ("gzip;q=nan, deflate;q=inf", "identity"),
        ("gzip;level=1", "gzip"),
        (";,;q=,==" * 100_000, "identity"),
    ],
)
def test_choose_encoding_takes_the_best_accepted_encoding(accepted: str, encoding: str) -> None:
    assert choose_encoding(accepted) == encoding


# --- long arrays


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
