from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.json_texts import damaged, json_text, numbers, strings, values
from tests.unit.core.http.payloads.payload_models import model, one
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.http.payloads.csv import decode_csv
from trident.core.http.payloads.json import decode_json, decode_jsonlines
from trident.core.http.payloads.payload import DecodedPayload, DecodeRules, ErrorLocation, as_datatype, output_columns
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import BY_NAME, Array

# --- output columns


def tensor(name: str, array: Array, datatype: str = "FP32") -> OutputTensor:
    return OutputTensor(name, datatype, array.shape, array)


def payload(count: int | None, stacked: bool = True) -> DecodedPayload:
    return DecodedPayload(arrays={}, count=count, stacked=stacked)


def test_single_instances_become_rows_and_keep_their_shapes() -> None:
    responses = [[tensor("A", np.zeros(n, np.float32)), tensor("B", np.float32(n) * np.ones(()))] for n in (1, 2)]
    first, second = output_columns(responses, payload(2, stacked=False))
    assert [part.shape for part in first.parts] == [(1, 1), (1, 2)]
    assert [part.tolist() for part in second.parts] == [[1, 2]]
    with pytest.raises(
        InvalidRequest, match=r"output 'A' has rows of different shapes, such as \[1\] and \[2\], which x"
    ):
        first.array("x")


@pytest.mark.parametrize(
    "responses",
    [
        [[]],
        [[tensor("A", np.ones((3, 1)))]],
        [[tensor("A", np.ones(()))]],
        [[tensor("A", np.ones((1, 1)))], [tensor("B", np.ones((1, 1)))]],
    ],
)
def test_a_model_with_wrong_outputs_is_reported(responses: list[list[OutputTensor]]) -> None:
    with pytest.raises(BackendFailed):
        output_columns(responses, payload(2))


# --- Any body is a payload or an InvalidRequest, whichever parser reads it


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


def outcome(decode: Callable[[bytearray, ModelSpec, DecodeRules], Any], body: bytes, name: str) -> Any:
    """The payload, or the text of its error."""
    rules = DecodeRules(ignored_fields=frozenset({"key"}))
    try:
        payload = decode(bytearray(body), SPECS[name], rules)
    except InvalidRequest as error:
        return type(error), re.sub(r" at [0-9]+$", "", error.message), error.hint
    arrays = {name: _content(array) for name, array in payload.arrays.items()}
    rows = None if payload.rows is None else [{n: _content(a) for n, a in row.items()} for row in payload.rows]
    return arrays, rows, payload.count, payload.stacked, payload.form, payload.parameters


def _content(array: Array) -> Any:
    return array.dtype, array.shape, repr(array.tolist())


@pytest.mark.slow
@settings(max_examples=300)
@given(content=st.data(), name=specs)
def test_length_of_a_document_does_not_change_its_payload_or_error(content: st.DataObject, name: str) -> None:
    listed = instances(name)
    forms = st.one_of(
        listed,
        st.fixed_dictionaries(
            {"instances": listed}, optional={"parameters": st.just({"a": 1}), "signature_name": strings, "x": values}
        ),
        st.fixed_dictionaries({"key": st.just([1]), "instances": listed}),
        st.fixed_dictionaries({"inputs": listed}),
    )
    body = content.draw(damaged(json_text(forms)).filter(bool))
    assert outcome(decode_json, b" " * 2000 + body, name) == outcome(decode_json, body, name)


@pytest.mark.slow
@settings(max_examples=300)
@given(content=st.data(), name=specs, end=st.sampled_from(["\n", "\r\n"]))
def test_lines_are_a_payload_or_refused(content: st.DataObject, name: str, end: str) -> None:
    lines = content.draw(instances(name))
    text = end.join(json.dumps(line) for line in lines) + content.draw(st.sampled_from(["", end, end + end, " "]))
    body = content.draw(damaged(st.just(text.encode())))
    outcome(decode_jsonlines, body, name)


CELLS = st.one_of(
    st.integers(-9, 9), st.floats(width=16), strings, st.sampled_from(["nan", "a", 'a"b', '"', " 1", "true", "1_0"])
)


@pytest.mark.slow
@settings(max_examples=300)
@given(content=st.data(), name=specs, end=st.sampled_from(["\n", "\r\n"]))
def test_csv_is_a_payload_or_refused(content: st.DataObject, name: str, end: str) -> None:
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
    outcome(decode_csv, body, name)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_signalling_nans_are_refused_for_integers_without_a_warning(dtype: type[np.floating[Any]]) -> None:
    bits = {2: 0x7D01, 4: 0x7FA00001, 8: 0x7FF4000000000001}[np.dtype(dtype).itemsize]
    array = np.array([bits], f"u{np.dtype(dtype).itemsize}").view(dtype)
    with pytest.raises(InvalidRequest, match="got NaN"):
        as_datatype(array, BY_NAME["INT32"], ErrorLocation(None, "A"))
