"""Random JSON texts, right and damaged."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

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
