"""A number means the same in every format, whatever else is in the body: exactly itself, or it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.core.http.payloads.payload_models import RULES, one
from trident.core.errors import InvalidRequest
from trident.core.http.generate import decode_object
from trident.core.http.payloads.csv import decode_csv
from trident.core.http.payloads.json import decode_json, decode_jsonlines
from trident.core.http.v2_request import decode_request
from trident.core.inference.tensors import BY_NAME, Array, array_of

LIMIT = 1 << 20
# fmt: off
WHOLE = [
    "0", "-0", "1", "-1", "127", "128", "-128", "-129", "255", "256", "32767", "32768", "65535", "65536", "16777217",
    "2147483647", "2147483648", "4294967295", "4294967296", "9007199254740991", "9007199254740992", "9007199254740993",
    "-9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "18446744073709551615", "18446744073709551616", "123456789012345678901234567890", "1" * 308, "9" * 309, "1" * 5000,
]
NUMBERS = [
    *WHOLE, "0.0", "-0.0", "1.0", "1e0", "1E+2", "100e-2", "1.5", "0.1", "-0.30000000000000004", "5e-324", "1e-400",
    "2.5e-8", "1e18", "1e19", "1e23", "1.8446744073709552e19", "9007199254740991.0", "9007199254740992.0",
    "9007199254740993.0", "9.007199254740993e15", "-9.223372036854775808e18", "1e39", "-1e39", "3.4028235e38", "1e308",
    "1e309", "1e400", "-1e400", "1e999999999999",
]
# fmt: on
DATATYPES = ["INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "FP32", "FP64"]


def v2(texts: list[str], datatype: str, around: str) -> Array:
    tensor = f'"name":"IN","datatype":"{datatype}","shape":[1,{len(texts)}],"data":[{",".join(texts)}]'
    body = f'{{{around}"inputs":[{{{tensor}}}]}}'
    request, _ = decode_request(body.encode(), None, -1, one(datatype, -1), LIMIT)
    (found,) = request.inputs
    return array_of(found.data, BY_NAME[datatype].dtype, found.shape).reshape(-1)


def generate(texts: list[str], datatype: str, around: str) -> Array:
    body = f'{{{around}"IN":[{",".join(texts)}]}}'
    (tensor,) = decode_object(body.encode(), -1, one(datatype, -1), LIMIT).inputs
    return array_of(tensor.data, BY_NAME[datatype].dtype, tensor.shape).reshape(-1)


def payload(decode: Callable[..., object], form: str, separator: str) -> Callable[..., Array]:
    def read(texts: list[str], datatype: str, around: str) -> Array:
        body = (form % separator.join(texts)).replace("{", "{" + around, 1)
        decoded = decode(body.encode(), one(datatype, 1), RULES)
        array: Array = decoded.arrays["IN"]  # type: ignore[attr-defined]
        return array.reshape(-1)

    return read


FORMATS: dict[str, Callable[..., Array]] = {
    "v2": v2,
    "generate": generate,
    "instances": payload(decode_json, '{"instances":[[%s]]}', "],["),
    "values": payload(decode_json, '{"instances":[%s]}', ","),
    "named": payload(decode_json, '{"instances":[{"IN":%s}]}', '},{"IN":'),
    "columns": payload(decode_json, '{"inputs":{"IN":[[%s]]}}', "],["),
    "bare": payload(decode_json, "[[%s]]", "],["),
    "lines": payload(decode_jsonlines, "[%s]\n", "]\n["),
    "values on lines": payload(decode_jsonlines, "%s\n", "\n"),
    "csv": payload(decode_csv, "%s\n", "\n"),
}
# What else may stand in an object.
AROUND = ["", '"parameters":{"a":"NaN"},', '"parameters":{"a":NaN},', '"parameters":{"Infinity":"\\"-Inf"},']


def right(text: str, datatype: str, format: str) -> object:
    """The number, or None if it must be refused."""
    is_v2 = format in ("v2", "generate")
    number = float(text)
    if not datatype.startswith("FP"):
        limits = np.iinfo(BY_NAME[datatype].dtype)
        if text in WHOLE:
            value = int(text) if len(text) < 100 else limits.max + 1
        elif is_v2 or not number.is_integer() or abs(number) >= 2**53:
            return None
        else:
            value = int(number)
        return value if limits.min <= value <= limits.max else None
    if math.isinf(number):
        return None
    if text == "-0" and format != "csv":
        number = 0.0  # JSON's integer
    with np.errstate(over="ignore"):
        narrow = BY_NAME[datatype].dtype.type(number)
    # Triton makes an infinity of a double beyond FP32.
    return None if np.isinf(narrow) and not is_v2 else narrow.item()


def outcome(format: str, texts: list[str], datatype: str, around: str = "") -> object:
    try:
        return list(map(repr, FORMATS[format](texts, datatype, around).tolist()))
    except InvalidRequest:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("datatype", DATATYPES)
def test_a_number_is_exact_or_refused(format: str, datatype: str) -> None:
    places = AROUND if format in ("v2", "generate", "instances", "values", "named", "columns") else [""]
    if format == "generate":
        places = [each.replace('"parameters":{', "").replace("},", ",") for each in places]
    if format == "named":
        places = places[:1]  # the first object is an instance
    for text in NUMBERS:
        expected = right(text, datatype, format)
        wanted = None if expected is None else [repr(expected)]
        for around in places:
            assert outcome(format, [text], datatype, around) == wanted, (text, around)
        for other in ("2", "9007199254740991", "0.0", "2.0"):
            number = right(other, datatype, format)
            if number is not None:
                wanted = None if expected is None else [repr(expected), repr(number)]
                both = [text, other]
                for around in places[:3]:
                    assert outcome(format, both, datatype, around) == wanted, (text, other, around)
                if wanted is not None and other in ("2", "2.0"):
                    many = outcome(format, both * 300, datatype)
                    assert many == wanted * 300, (text, other)
