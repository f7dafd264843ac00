"""Random texts for readers that must not depend on slices."""

from __future__ import annotations

import csv
import io
import json
import threading
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import simdjson
from hypothesis import strategies as st

from trident.core.http import body

sizes = st.integers(1, 40)
strings = st.text(alphabet='ab"\\,[]{}: \u00e9\U0001f600\n', max_size=8)
numbers = st.one_of(
    st.integers(-300, 300), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([2**63, 2**64, -(2**63)])
)
values = st.one_of(numbers, strings, st.booleans(), st.none())
_SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])
# Bytes that mean something to a parser.
_EDITS = b'"\\,[]{}: 1e.-n\xff\n'


def nested(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists, and rectangular and ragged lists of lists."""
    rows = st.integers(0, 3).flatmap(lambda width: _lists(st.lists(elements, min_size=width, max_size=width)))
    return st.one_of(_lists(elements), rows, _lists(_lists(elements)), st.lists(rows, max_size=3))


def _lists(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(elements, max_size=6)


@st.composite
def json_text(draw: st.DrawFn, document: st.SearchStrategy[Any]) -> bytes:
    """A document as JSON, as different writers write it."""
    separators = draw(_SEPARATORS)
    text = json.dumps(draw(document), separators=separators, ensure_ascii=draw(st.booleans()))
    return text.encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, texts: st.SearchStrategy[bytes]) -> bytes:
    """One of `texts`, half of them with an error: a byte more, less or other than it was, or the end missing."""
    text = draw(texts)
    if not text or draw(st.booleans()):
        return text
    at = draw(st.integers(0, len(text) - 1))
    byte = bytes([draw(st.sampled_from(list(_EDITS)))])
    return draw(
        st.sampled_from(
            [text[:at] + text[at + 1 :], text[:at] + byte + text[at:], text[:at], text[:at] + byte + text[at + 1 :]]
        )
    )


def sizes_parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all texts that parsers read from now on, each in one step."""
    sizes: list[int] = []

    def noted(parse: Any) -> Any:
        def note(text: Any, *arguments: Any, **options: Any) -> Any:
            sizes.append(len(text.getvalue() if isinstance(text, io.StringIO) else text))
            return parse(text, *arguments, **options)

        return note

    class Parser:
        def __init__(self) -> None:
            self.parse = noted(simdjson.Parser().parse)

    monkeypatch.setattr(body, "simdjson", SimpleNamespace(Parser=Parser))
    monkeypatch.setattr(body, "_local", threading.local())
    for module, name in ((orjson, "loads"), (json, "loads"), (csv, "reader")):
        monkeypatch.setattr(module, name, noted(getattr(module, name)))
    return sizes
