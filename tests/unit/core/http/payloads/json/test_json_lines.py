from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.http.payloads.payload_models import RULES, column, model, one
from trident.core.errors import InvalidRequest
from trident.core.http.long_json import ELEMENTS
from trident.core.http.payloads.json import decode_jsonlines, encode_jsonlines


@pytest.mark.parametrize(
    "text",
    [
        "[1,2]\n[3,4]",
        "\n[1,2]\n\n \r\n[3,4]\n\n",
        "[1,2]\r\n[3,4]\r\n",
        " [1, 2]\n[3,4] ",
        '{"IN":[1,2]}\n{"IN":[3,4]}',
    ],
)
def test_each_line_is_an_instance(text: str) -> None:
    payload = decode_jsonlines(text.encode(), one("FP32", 2), RULES)
    assert payload.arrays["IN"].tolist() == [[1, 2], [3, 4]]
    assert (payload.count, payload.stacked) == (2, True)


def test_lines_may_have_several_inputs_or_scalars() -> None:
    spec = model({"A": ("FP32", (1,)), "B": ("BYTES", (1,))})
    payload = decode_jsonlines(b'{"A":1,"B":"x"}\n{"B":{"b64":"/w=="},"A":"NaN"}\n', spec, RULES)
    assert payload.arrays["B"].tolist() == [[b"x"], [b"\xff"]]
    assert np.isnan(payload.arrays["A"][1, 0])
    assert decode_jsonlines(b"1\n2", one("INT8", 1), RULES).arrays["IN"].tolist() == [[1], [2]]
    assert decode_jsonlines(b"[[1]]\n[[2]]", one("INT8", 1, 1), RULES).arrays["IN"].tolist() == [[[1]], [[2]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no instances"),
        ("\n", "there are no instances"),
        ("[1,2]\n\n[3", "line 2: failed to parse"),
        ("[1,2]\n[3", "line 2: failed to parse"),
        ("[1,2],[3,4]", "line 1: failed to parse"),
        ("[1,2],[3,4]\n[5,6]", "line 1: failed to parse"),
        ("[1,2\n3,4]", "line 1: failed to parse"),
        ("[[1,2]\n[3,4]]", "line 1: failed to parse"),
        ("[1,2]]\n[[3,4]", "line 1: failed to parse"),
        ("[1,2]\n[3]", "line 2, input 'IN': expected a list of 2, got one of 1"),
        ("[1,2,3]\n[4,5,6]", "line 1, input 'IN': expected a list of 2, got one of 3"),
        ("[1,2]\n[3,1e39]", "line 2, input 'IN', element [1]: expected a number that FP32 can hold"),
        ("[1,2]\n[3,null]", "line 2, input 'IN', element [1]: expected a number that FP32 can hold"),
        ('[1,2]\n{"IN":[1,2]}', "line 1: expected an object"),
    ],
)
def test_an_error_names_the_line(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_jsonlines(text.encode(), one("FP32", 2), RULES)
    assert caught.value.message.startswith(message)


def test_each_instance_is_encoded_as_a_line() -> None:
    numbers = column("A", "FP32", [[0.1, np.nan], [3, 4]])
    assert b"".join(encode_jsonlines([numbers])) == b'[0.1,"NaN"]\n[3.0,4.0]\n'
    both = [numbers, column("B", "INT64", [1, 2])]
    assert b"".join(encode_jsonlines(both)) == b'{"A":[0.1,"NaN"],"B":1}\n{"A":[3.0,4.0],"B":2}\n'


def test_many_rows_are_written_in_parts() -> None:
    rows = range(2 * ELEMENTS + 1)
    parts = encode_jsonlines([column("A", "INT32", list(rows))])
    assert len(parts) == 3
    assert b"".join(parts) == b"".join(b"%d\n" % row for row in rows)
