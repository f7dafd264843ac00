"""An object that is read in slices is the request that is read as a whole, and so is its error."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.slices.texts import damaged, json_text, nested, numbers, sizes, sizes_parsed, strings, values
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.errors import InvalidRequest, RequestCancelled, ServerError
from trident.core.http.generate import decode_object
from trident.core.http.long_json import Slicing
from trident.core.inference.tensors import BY_NAME

LIMIT = 1 << 20
SPEC = ModelSpec(
    name="m",
    version=1,
    platform="",
    backend="python",
    max_batch_size=8,
    inputs={
        name: InputSpec(name=name, datatype=BY_NAME[datatype], dims=(-1,))
        for name, datatype in (("INT", "INT32"), ("FP", "FP32"), ("TEXT", "BYTES"), ("FLAG", "BOOL"))
    },
    outputs={},
)


def outcome(body: bytes, slicing: Slicing | None = None, limit: int = LIMIT) -> Any:
    """The request, or the text of its error."""
    try:
        request = decode_object(bytearray(body), -1, SPEC, limit, slicing)
    except ServerError as error:
        return type(error), error.message, error.hint
    inputs = [(t.name, t.datatype, t.shape, t.data.dtype, list(map(repr, t.data.tolist()))) for t in request.inputs]  # type: ignore[union-attr]
    return request.id, repr(request.parameters), inputs


lists = {
    "INT": st.lists(st.integers(-300, 300), max_size=9) | nested(numbers),
    "FP": st.lists(numbers, max_size=9) | nested(values),
    "TEXT": st.lists(strings, max_size=9) | nested(values),
    "FLAG": st.lists(st.booleans(), max_size=9),
    "other": values | nested(values),
}
members = st.fixed_dictionaries({}, optional=lists)
objects = st.builds(
    lambda flat, under, more: {**flat, **({"parameters": under} if more else {})}, members, members, st.booleans()
)


@pytest.mark.slow
@settings(max_examples=300)
@given(body=damaged(json_text(objects)), size=sizes)
def test_slices_do_not_change_a_request_or_its_error(body: bytes, size: int) -> None:
    assert outcome(body, Slicing(size=size)) == outcome(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"INT": [1,2,3,4], "INT": [5,6,7,8]}',
        b'{"INT": 1, "INT": [5,6,7,8]}',
        b'{"INT": [5,6,7,8], "INT": 1}',
        b'{"INT": [5,6,7,8], "parameters": {"INT": [1,2,3,4]}}',
        b'{"parameters": {"INT": [1,2,3,4], "speed": 1}}',
        b'{"other": {"INT": [1,2,3,4]}}',
        b'[{"INT": [1,2,3,4]}]',
        b'{"FP": [1,2,NaN,4], "id": "r"}',
        b'{"TEXT": ["a[b","c]","d,","\\u0022e"]}',
        b'{"INT": [1,[2],3,4]}',
        b'{"TEXT": ["a",["b"],"c","d"]}',
        b'{"FP": [1,2,Inf,4]}',
        b'{"INT": [1,2,"x",4]}',
        b'{"INT": [1,2,3 4,5]}',
        b'{"INT": [1,2,\xff,4]}',
        b'{"INT": [1,2,3,4], "TEXT": ["\xff","b"]}',
    ],
)
def test_what_only_the_whole_object_shows(body: bytes) -> None:
    for size in range(1, 12):
        assert outcome(body, Slicing(size=size)) == outcome(body)


def test_lists_over_the_limit_are_refused() -> None:
    body = orjson.dumps({"INT": list(range(100))})
    assert outcome(body, Slicing(size=16), 399) == outcome(body, None, 399)
    assert "request size of 400 bytes" in outcome(body, Slicing(size=16), 399)[1]
    assert outcome(body, Slicing(size=16), 400)[2][0][2] == (1, 100)


def test_an_object_is_not_read_further_when_the_pause_stops_it() -> None:
    left = iter(range(5))

    def pause() -> None:
        if next(left, None) is None:
            raise RequestCancelled("gone")

    with pytest.raises(RequestCancelled):
        decode_object(orjson.dumps({"INT": list(range(999))}), -1, SPEC, LIMIT, Slicing(pause, 100))


def test_the_same_object_fails_with_one_wrong_element() -> None:
    with pytest.raises(InvalidRequest, match="non-signed-integer"):
        decode_object(orjson.dumps({"INT": [*range(999), "a"]}), -1, SPEC, LIMIT, Slicing(size=16))


def test_a_right_object_is_read_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    body = orjson.dumps({"INT": list(range(600)), "TEXT": ["a"] * 600})
    expected = outcome(body)
    parsed = sizes_parsed(monkeypatch)
    assert outcome(body, Slicing(size=100)) == expected
    assert max(parsed) < 300
