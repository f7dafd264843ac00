"""A body that is decoded in slices gives the payload that it gives as a whole, and the same error."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.payloads.payload_models import model, one
from tests.unit.core.http.slices.texts import damaged, json_text, numbers, sizes, sizes_parsed, strings, values
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest, RequestCancelled
from trident.core.http.long_json import Slicing
from trident.core.http.payloads.csv import decode_csv
from trident.core.http.payloads.json import decode_json, decode_jsonlines
from trident.core.http.payloads.payload import DecodeRules
from trident.core.inference.tensors import Array

SPECS = {
    "numbers": one("FP32", 2),
    "any width": one("FP64", -1),
    "rows": one("INT64", 2, 2),
    "scalars": one("INT8", 1),
    "strings": one("BYTES", 1),
    "booleans": one("BOOL", 2),
    "one by one": one("FP32", -1, batch=0),
    "two inputs": model({"A": ("FP32", (2,)), "B": ("BYTES", (1,))}),
    "optional": model({"A": ("FP32", (1,)), "B": ("INT32", (1,))}, optional="B"),
}
specs = st.sampled_from(list(SPECS))
b64 = st.sampled_from([{"b64": "/w=="}, {"b64": "AACAPwAAgD8="}, {"b64": "x"}, {"b64": 1}])
NAMED: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "two inputs": {"A": st.lists(numbers, min_size=2, max_size=2), "B": strings},
    "optional": {"A": numbers, "B": st.integers(0, 9)},
}
ROWS: dict[str, st.SearchStrategy[Any]] = {
    "numbers": st.lists(numbers, min_size=2, max_size=2),
    "any width": st.lists(numbers, min_size=3, max_size=3),
    "rows": st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=2, max_size=2),
    "scalars": st.integers(0, 9),
    "strings": strings,
    "booleans": st.lists(st.booleans(), min_size=2, max_size=2),
    "one by one": st.lists(numbers, max_size=3),
}


@st.composite
def instances(draw: st.DrawFn, name: str) -> list[Any]:
    """Instances of a model, most of them right."""
    right = st.fixed_dictionaries(NAMED[name]) if name in NAMED else ROWS[name]
    found = draw(st.lists(right, max_size=8))
    if name in ROWS and draw(st.booleans()):
        found = [{"IN": value} for value in found]
    if found and draw(st.sampled_from([False, False, True])):
        wrong = st.one_of(values, b64, st.lists(values, max_size=3), st.dictionaries(strings, values, max_size=2))
        found[draw(st.integers(0, len(found) - 1))] = draw(wrong)
    return found


def outcome(
    decode: Callable[[bytearray, ModelSpec, DecodeRules], Any], body: bytes, name: str, slicing: Slicing | None = None
) -> Any:
    """The payload, or the text of its error."""
    rules = DecodeRules(ignored_fields=frozenset({"key"}), slicing=slicing)
    try:
        payload = decode(bytearray(body), SPECS[name], rules)
    except InvalidRequest as error:
        return type(error), error.message, error.hint
    arrays = {name: _content(array) for name, array in payload.arrays.items()}
    rows = None if payload.rows is None else [{n: _content(a) for n, a in row.items()} for row in payload.rows]
    return arrays, rows, payload.count, payload.stacked, payload.form, payload.parameters


def _content(array: Array) -> Any:
    return array.dtype, array.shape, repr(array.tolist())


def test_a_first_slice_that_is_not_utf_8_has_the_error_of_the_document() -> None:
    body = b"[\xff0,0]"
    assert outcome(decode_json, body, "scalars", Slicing(size=1)) == outcome(decode_json, body, "scalars")


@pytest.mark.slow
@settings(max_examples=300)
@given(content=st.data(), name=specs, size=sizes)
def test_slices_do_not_change_a_document(content: st.DataObject, name: str, size: int) -> None:
    listed = instances(name)
    forms = st.one_of(
        listed,
        st.fixed_dictionaries(
            {"instances": listed}, optional={"parameters": st.just({"a": 1}), "signature_name": strings, "x": values}
        ),
        st.fixed_dictionaries({"key": st.just([1]), "instances": listed}),
        st.fixed_dictionaries({"inputs": listed}),
    )
    body = content.draw(damaged(json_text(forms)))
    assert outcome(decode_json, body, name, Slicing(size=size)) == outcome(decode_json, body, name)


@pytest.mark.slow
@settings(max_examples=300)
@given(content=st.data(), name=specs, size=sizes, end=st.sampled_from(["\n", "\r\n"]))
def test_slices_do_not_change_lines(content: st.DataObject, name: str, size: int, end: str) -> None:
    lines = content.draw(instances(name))
    text = end.join(json.dumps(line) for line in lines) + content.draw(st.sampled_from(["", end, end + end, " "]))
    body = content.draw(damaged(st.just(text.encode())))
    assert outcome(decode_jsonlines, body, name, Slicing(size=size)) == outcome(decode_jsonlines, body, name)


CELLS = st.one_of(
    st.integers(-9, 9), st.floats(width=16), strings, st.sampled_from(["nan", "a", 'a"b', '"', " 1", "true", "1_0"])
)


@pytest.mark.slow
@settings(max_examples=300)
@given(content=st.data(), name=specs, size=sizes, end=st.sampled_from(["\n", "\r\n"]))
def test_slices_do_not_change_csv(content: st.DataObject, name: str, size: int, end: str) -> None:
    width = content.draw(st.sampled_from([1, 2, 3, 4]))
    cells = content.draw(st.sampled_from([numbers, st.integers(0, 9), CELLS]))
    rows = content.draw(st.lists(st.lists(cells, min_size=width, max_size=width), max_size=8))
    if content.draw(st.booleans()):
        file = io.StringIO(newline="")
        csv.writer(file, lineterminator=end).writerows(rows)
        text = file.getvalue()
    else:
        text = end.join(",".join(map(str, row)) for row in rows)
    body = content.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + content.draw(damaged(st.just(text.encode())))
    assert outcome(decode_csv, body, name, Slicing(size=size)) == outcome(decode_csv, body, name)


@pytest.mark.parametrize(
    "body",
    [
        b'[{"IN":[1,2]},[3,4],[5,6]]',
        b'[[1,2],{"b64":"AACAPwAAgD8="}]',
        b'{"instances":[[1,2],[3,4]],"instances":[[5,6],[7,8]]}',
        b'{"instances":[[1,2],[3,4]],"x":{"instances":[[5,6],[7,8]]}}',
        b"[[1,2],[3,4]] x",
        b"[[1,2],[3]]",
    ],
)
@pytest.mark.parametrize("size", range(1, 12))
def test_rows_that_only_the_whole_document_compares(body: bytes, size: int) -> None:
    for name in SPECS:
        assert outcome(decode_json, body, name, Slicing(size=size)) == outcome(decode_json, body, name)


def test_a_body_is_not_decoded_further_when_the_pause_stops_it() -> None:
    def pause() -> None:
        raise RequestCancelled("gone")

    rules = DecodeRules(slicing=Slicing(pause, 4))
    for decode, body in ((decode_json, b"[[1,2],[3,4]]"), (decode_jsonlines, b"[1,2]\n[3,4]"), (decode_csv, b"1,2\n")):
        with pytest.raises(RequestCancelled):
            decode(body, SPECS["numbers"], rules)


DOCUMENTS = ("[%s]", '{"instances":[%s]}', '{"parameters":{},"instances":[%s],"signature_name":"s"}')


def bodies(rows: list[str]) -> list[tuple[Callable[[bytearray, ModelSpec, DecodeRules], Any], bytes]]:
    """Bodies with the rows, each with its decoder."""
    texts = [(decode_json, document % ",".join(rows)) for document in DOCUMENTS]
    texts.append((decode_jsonlines, "\n".join(rows)))
    texts.append((decode_csv, "\n".join(row.strip("[]") for row in rows)))
    return [(decode, text.encode("utf-8", "surrogateescape")) for decode, text in texts]


@pytest.mark.parametrize(
    "wrong",
    [
        *("[1.5]", '[1.5,"x"]', "[1e300,1]", "1.5", "{}", '{"IN":[1]}', '{"b64":"AACAPwAAgD8="}', "[1.5 2.5]"),
        *("[1.5,2.5", "[1.5,2.5}", "[1.5,2.5]]", '["\udcff",1]', "\udcff", "[1.5,x]", '[NaN,"x"]', "[NaN,1]"),
    ],
)
def test_one_wrong_row_gives_the_error_of_the_whole_body(wrong: str) -> None:
    rows = ["[1.5,2.5]"] * 20
    rows[11] = wrong
    for decode, body in bodies(rows):
        for text in (body, body[:-1]):
            assert outcome(decode, text, "numbers", Slicing(size=30)) == outcome(decode, text, "numbers")


@pytest.mark.parametrize("row", ["[1.5,2.5]", "[1.5,NaN]"])
def test_a_right_body_is_read_in_small_steps(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for decode, body in bodies([row] * 400):
        expected = outcome(decode, body, "numbers")
        with monkeypatch.context() as patched:
            parsed = sizes_parsed(patched)
            assert outcome(decode, body, "numbers", Slicing(size=100)) == expected
        assert max(parsed, default=0) < 300
