"""TritonError, and texts in bytes: `as_numpy()` of strings gives them, and Triton's library takes them as a str."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from trident_stub.errors import TritonError, text_of


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("UNKNOWN", 0),
        ("INTERNAL", 1),
        ("NOT_FOUND", 2),
        ("INVALID_ARG", 3),
        ("UNAVAILABLE", 4),
        ("UNSUPPORTED", 5),
        ("ALREADY_EXISTS", 6),
        ("CANCELLED", 7),
    ],
)
def test_codes(name: str, number: int) -> None:
    error = TritonError(message="text", code=getattr(TritonError, name))
    assert (error.message(), error.code()) == ("text", number)


@pytest.mark.parametrize("arguments", [(None,), (1,), ("text", None), ("text", 8), ("text", "INTERNAL")])
def test_wrong_types(arguments: Any) -> None:
    with pytest.raises(TypeError, match="TritonError"):
        TritonError(*arguments)


BYTES = np.array(["ä".encode()], np.object_)[0]


def test_texts_in_bytes() -> None:
    assert [text_of(each, "it") for each in ("ä", np.str_("ä"), BYTES, np.bytes_(BYTES), bytearray(BYTES))] == ["ä"] * 5
    with pytest.raises(ValueError, match=r"it must be text, and the bytes b'\\xff' are not UTF-8: invalid start byte"):
        text_of(b"\xff", "it")
    with pytest.raises(TypeError, match="it must be a str, not int"):
        text_of(1, "it")


def test_texts_of_a_request_in_bytes() -> None:
    request = pb_utils.InferenceRequest(
        request_id=BYTES, correlation_id=BYTES, model_name=BYTES, requested_output_names=[BYTES], inputs=[]
    )
    assert (request.request_id(), request.correlation_id(), request.requested_output_names()) == ("ä", "ä", {"ä"})
    assert request._description()["model_name"] == "ä"


def test_texts_of_tensors_and_errors_in_bytes() -> None:
    assert pb_utils.Tensor(BYTES, np.zeros(1)).name() == "ä"
    assert pb_utils.Tensor.from_dlpack(BYTES, np.zeros(1)).name() == "ä"
    assert pb_utils.TritonError(BYTES).message() == "ä"
