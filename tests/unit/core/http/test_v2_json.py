from __future__ import annotations

import orjson
import pytest

from trident.core.errors import InvalidRequest
from trident.core.http.body import parse_json
from trident.core.http.v2_json import array_from_json, parse_document
from trident.core.inference.tensors import BY_NAME

# --- json document


PADDING = b" " * 2000


@pytest.mark.parametrize("padding", [b"", PADDING])
def test_keys_with_nul_are_read_completely(padding: bytes) -> None:
    text = rb'{"a\u0000b": 1, "a": 2, "inputs": [{"data\u0000": 3, "\u0000": null, "data": [4]}]}'
    document = parse_document(padding + text, binary_follows=False)
    assert document == {"a\0b": 1, "a": 2, "inputs": [{"data\0": 3, "\0": None, "data": [4]}]}


@pytest.mark.parametrize("padding", [b"", PADDING])
@pytest.mark.parametrize(("depth", "refused"), [(99, False), (100, True), (900, True)])
def test_numbers_nested_too_deep_are_refused_in_either_size(padding: bytes, depth: int, refused: bool) -> None:
    text = b'{"inputs":[{"datatype":"INT32","data":' + b"[" * depth + b"1" + b"]" * depth + b"}]}" + padding

    def read() -> object:
        (item,) = parse_document(text, binary_follows=False)["inputs"]
        return array_from_json(item["data"], BY_NAME["INT32"], 1, "IN").tolist()

    if refused:
        with pytest.raises(InvalidRequest, match=r"^Unable to parse 'data': JSON nesting depth exceeds"):
            read()
    else:
        assert read() == [1]


def test_array_outlives_the_parsers_next_document() -> None:
    def text(number: float) -> bytes:
        return f'{{"inputs":[{{"datatype":"FP32","data":{[number] * 500}}}]}}'.encode()

    (first,) = parse_document(text(1.5), binary_follows=False)["inputs"]
    (second,) = parse_document(text(2.5), binary_follows=False)["inputs"]
    assert set(first["data"].tolist()) == {1.5}
    assert set(second["data"].tolist()) == {2.5}


WORDS = [b"NaN", b"-NaN", b"Inf", b"Infinity", b"-Infinity", b"-Inf"]
REFUSED = [
    b"1e400", b"-1e400", b"9" * 400, b"1" * 5000, b"01", b"1.", b"+1", b".5", b"--NaN", b"NaNN", b"1Inf", b"1e5Inf",
    b'"\\ud800"', b'"\\ude00\\ud83d"', b'"caf\xe9"', b'"\xed\xa0\x80"', b'"a\nb"', b'"\\x"', b"[1,]", b"{1:2}", b"nan",
]  # fmt: skip
VALUES = [b"18446744073709551616", b"-9223372036854775809", b"18446744073709551615", b"-0", b"-0.0", b"1E5", b"1e-400",
    b'"NaN"', b'"\\"Inf"', b'"\\\\"', b'"\\ud83d\\ude00"', b'"\xc3\xa9"', b"null"]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_special_value_does_not_change_how_other_values_are_parsed(word: bytes) -> None:
    for text in VALUES:
        (number, value), name = parse_json(b"[[%b,%b],%b]" % (word, text, b'"NaN"'))
        assert (repr(value), name) == (repr(orjson.loads(text)), "NaN")
        assert repr(number) == repr(float(word))
    for text in REFUSED:
        for around in (
            b"%b",
            b"[%b," + word + b"]",
            b"[" + word + b",%b]",
            b'["' + word + b'",%b]',
            b'{"a":%b,"NaN":1}',
        ):
            with pytest.raises(InvalidRequest, match=r"^failed to parse the request JSON buffer: "):
                parse_json(around % text)


def test_duplicate_members_are_all_returned_as_pairs() -> None:
    for text in (b'{"a":1,"a":%b}', b'{"a":1,"a":%b,"b":NaN}'):
        pairs = parse_json(text % b"18446744073709551616", pairs=list)
        assert pairs[:2] == [("a", 1), ("a", 2.0**64)]
        assert isinstance(pairs[1][1], float)
    with pytest.raises(InvalidRequest, match="here: failed to parse"):
        parse_json(b"[1e400]", "here", pairs=list)


# --- json tensors
