from __future__ import annotations

import numpy as np
import pytest

from trident.core.http.payloads.json import parse_number_array, wide_kind
from trident.core.inference.tensors import BY_NAME


@pytest.mark.parametrize(
    ("name", "kind"), [("FP16", "f"), ("BF16", "f"), ("INT8", "i"), ("UINT64", "u"), ("BOOL", None), ("BYTES", None)]
)
def test_a_datatype_has_its_wide_kind(name: str, kind: str | None) -> None:
    assert wide_kind(BY_NAME[name]) == kind


def test_nested_lists_become_an_array() -> None:
    found = parse_number_array(b"[[[1,2.5]],[[3,4]],[[-5,6e1]]]", None, "f")
    assert found is not None
    assert found[0].dtype == np.float64
    assert found[0].tolist() == [[[1, 2.5]], [[3, 4]], [[-5, 60]]]


def test_other_members_are_returned_as_values() -> None:
    text = b'{"parameters": {"outputs": ["a[", "b"]}, "instances": [[1], [18446744073709551615]]}'
    found = parse_number_array(text, "instances", "u")
    assert found is not None
    assert found[0].tolist() == [[1], [2**64 - 1]]
    assert found[1] == {"parameters": {"outputs": ["a[", "b"]}}


@pytest.mark.parametrize(
    "text",
    [
        b"[[1,2],[3]]",
        b"[[1],[2,3,4],[5,6]]",
        b"[[1,[2]],[3,4]]",
        b"[[1,[]],[3,4]]",
        b"[1,[2]]",
        b"[[1],2]",
        b"[[[1]],[2]]",
        b"[]",
        b"[1,true]",
        b"[null]",
        b'["1"]',
        b"[{}]",
        b"{}",
        b"1",
        b"[1",
        b"[1] 2",
        b"[1.5, 99999999999999999999999]",
        b"[" * 3000,
    ],
)
def test_any_other_text_gives_none(text: bytes) -> None:
    assert parse_number_array(text, None, "f") is None


def test_fractions_for_integers_and_repeated_keys_give_none() -> None:
    assert parse_number_array(b"[1.0]", None, "i") is None
    assert parse_number_array(b"[-1]", None, "u") is None
    assert parse_number_array(b'{"a":[1],"a":[2]}', "a", "i") is None
    assert parse_number_array(b'{"b":[1]}', "a", "i") is None
    assert parse_number_array(rb'{"a":[1],"b\u0000":2,"b":3}', "a", "i") is None


def test_a_document_parses_after_a_refused_one() -> None:
    assert parse_number_array(b"[1,{}]", None, "f") is None
    found = parse_number_array(memoryview(b"[7]"), None, "i")
    assert found is not None
    assert found[0].tolist() == [7]
