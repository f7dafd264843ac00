from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from tests.unit.core.http.payloads.payload_models import RULES, model, one
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.json import decode_json
from trident.core.http.payloads.payload import DecodedPayload, DocumentForm


def decode(document: Any, spec: Any) -> DecodedPayload:
    """Decode a small and a large document, which have different parsers, and check that the results are equal."""
    text = orjson.dumps(document)
    small = decode_json(text, spec, RULES)
    large = decode_json(memoryview(text + b" " * 2000), spec, RULES)
    assert (small.count, small.stacked, small.form, small.parameters) == (
        large.count,
        large.stacked,
        large.form,
        large.parameters,
    )
    for name, array in small.arrays.items():
        assert array.dtype == large.arrays[name].dtype
        assert array.shape == large.arrays[name].shape
        np.testing.assert_array_equal(array, large.arrays[name])
    return small


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "FP16", "INT8", "UINT64", "INT64"])
def test_instances_of_numbers_become_an_array(datatype: str) -> None:
    payload = decode({"instances": [[1, 2], [3, 4]], "parameters": {"outputs": ["["]}}, one(datatype, 2))
    assert payload.arrays["IN"].tolist() == [[1, 2], [3, 4]]
    assert payload.arrays["IN"].flags.c_contiguous
    assert payload.parameters == {"outputs": ["["]}
    assert payload.form is DocumentForm.INSTANCES


@pytest.mark.parametrize(
    ("document", "dims", "expected"),
    [
        ([[1, 2], [3, 4]], (2,), [[1, 2], [3, 4]]),
        ([1, 2], (2,), [[1, 2]]),
        ([1, 2, 3], (1,), [[1], [2], [3]]),
        ([[1], [2]], (1,), [[1], [2]]),
        ([1, 2, 3], (-1,), [[1, 2, 3]]),
        ([[1, 2], [3, 4]], (-1,), [[1, 2], [3, 4]]),
        ([[1, 2], [3, 4]], (2, 2), [[[1, 2], [3, 4]]]),
        ([1, 2], (), [1, 2]),
    ],
)
def test_a_bare_array_is_instances_or_one_instance(document: Any, dims: tuple[int, ...], expected: Any) -> None:
    payload = decode(document, one("FP32", *dims))
    assert payload.arrays["IN"].tolist() == expected
    assert payload.form is DocumentForm.BARE


def test_a_bare_array_may_have_the_models_own_batch_dimension() -> None:
    spec = one("FP32", -1, 2, batch=0)
    for document, count in (([[1, 2], [3, 4]], 2), ([1, 2], 1)):
        payload = decode(document, spec)
        assert (payload.count, payload.stacked) == (count, True)
    assert decode([[[1, 2]], [[3, 4]]], spec).stacked is False


def test_columns_are_whole_tensors() -> None:
    spec = model({"A": ("FP32", (2,)), "B": ("BYTES", (1,))})
    payload = decode({"inputs": {"A": [[1, 2], [3, 4]], "B": [["x"], ["y"]]}}, spec)
    assert payload.arrays["A"].tolist() == [[1, 2], [3, 4]]
    assert payload.arrays["B"].tolist() == [[b"x"], [b"y"]]
    assert (payload.count, payload.stacked) == (2, True)
    bare = decode({"inputs": [[1, 2], [3, 4]]}, one("FP32", 2))
    assert (bare.arrays["IN"].tolist(), bare.form) == ([[1, 2], [3, 4]], DocumentForm.COLUMNS)
    whole = decode({"inputs": {"IN": [1, 2]}}, one("FP32", 2, batch=0))
    assert whole.arrays["IN"].tolist() == [1, 2]
    assert whole.count is None
    assert decode({"inputs": {"IN": "x"}}, one("BYTES", batch=0)).arrays["IN"].tolist() == b"x"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_are_read(value: str) -> None:
    assert decode({"instances": [[value]]}, one("FP32", 1)).arrays["IN"].tolist() == [
        [pytest.approx(float(value), nan_ok=True)]
    ]
    bare = decode_json(f'{{"instances": [[{value}]]}}'.encode(), one("FP32", 1), RULES)
    assert bare.arrays["IN"].tolist() == [[pytest.approx(float(value), nan_ok=True)]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "failed to parse the request JSON buffer"),
        ("{", "failed to parse the request JSON buffer"),
        ('{"instances": [[1,2]', "failed to parse the request JSON buffer"),
        ("1", "expected a JSON object with 'instances'"),
        ("{}", "expected a JSON object with 'instances'"),
        ('{"a": {"instances": 1}}', "expected a JSON object with 'instances'"),
        ('{"instances": 1}', "'instances': expected a list of instances, got 1"),
        ('{"instances": []}', "there are no instances"),
        ("[]", "instance 0, input 'IN': expected a list of 2"),
        ('{"instances": [[1,2]], "parameters": [1]}', "'parameters': expected an object, got a list"),
        (
            '{"instances": [[1,2]], "parameter": {}}',
            "unknown member 'parameter' of the request, known are 'instances', ",
        ),
        ('{"instances": [[1,2],[3]]}', "instance 1, input 'IN': expected a list of 2, got one of 1"),
        (
            '{"instances": [[1,2],[3,1e39]]}',
            "instance 1, input 'IN', element [1]: expected a number that FP32 can hold",
        ),
        ('{"instances": [[1,2],[3,[4]]]}', "instance 1, input 'IN', element [1]: expected a number"),
        ('{"inputs": {}}', "'inputs': input 'IN' is missing"),
        ('{"inputs": {"IN": []}}', "input 'IN': expected a list of at least one row, got a list"),
        ('{"inputs": {"X": [1]}}', "'inputs': 'X' is not an input of model 'm'"),
        ('{"inputs": [1, 2]}', "row 0, input 'IN': expected a list of 2, got 1"),
    ],
)
def test_an_error_names_the_instance_and_the_input(text: str, message: str) -> None:
    for padding in ("", " " * 2000):
        with pytest.raises(InvalidRequest) as caught:
            decode_json((padding + text).encode(), one("FP32", 2), RULES)
        assert message in caught.value.message


def test_columns_with_different_numbers_of_rows_are_refused() -> None:
    spec = model({"A": ("FP32", ()), "B": ("FP32", ())})
    with pytest.raises(InvalidRequest, match="input 'B' has 2 rows, input 'A' has 1: expected the same"):
        decode_json(b'{"inputs": {"A": [1], "B": [1, 2]}}', spec, RULES)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"instances":' + b"[" * 900 + b"]" * 900 + b"}", b'{"a":' * 100_000]
)
def test_deep_nesting_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_json(text, one("FP32", 2), RULES)


def test_a_document_of_ten_megabytes_is_decoded() -> None:
    array = np.random.default_rng(0).normal(size=(17_000, 30)).astype(np.float32)
    text = orjson.dumps({"instances": array.astype(np.float64)}, option=orjson.OPT_SERIALIZE_NUMPY)
    assert len(text) > 10_000_000
    np.testing.assert_array_equal(decode_json(text, one("FP32", 30), RULES).arrays["IN"], array)
