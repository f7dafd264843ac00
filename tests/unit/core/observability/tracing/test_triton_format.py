from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.unit.core.observability.tracing.traces import TIMES, child_of, setting_of, trace_of
from trident.core.inference.tensors import pack_bytes
from trident.core.observability.tracing.files import trace_text
from trident.core.observability.tracing.trace import Trace, TracedTensor

INPUT = TracedTensor("TENSOR_QUEUE_INPUT", "IN", "INT32", (1, 2), np.array([1, 2], "<i4").tobytes())


def objects(trace: Trace, levels: tuple[str, ...] = TIMES) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(f"[{trace_text(trace, levels)}]")
    return found


def test_a_request_and_its_child() -> None:
    root = trace_of(1, setting_of(), model="ensemble", request_id='"r"')
    root.ahead = (("HTTP_RECV_START", 1), ("HTTP_RECV_END", 2))
    root.behind = (("HTTP_SEND_START", 30),)
    child_of(root, 2, model="step")
    assert trace_text(root, TIMES) == (
        '{"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":1}]},'
        '{"id":1,"timestamps":[{"name":"HTTP_RECV_END","ns":2}]},'
        '{"id":1,"model_name":"ensemble","model_version":1,"request_id":"\\"r\\""},'
        '{"id":1,"timestamps":[{"name":"REQUEST_START","ns":10}]},'
        '{"id":1,"timestamps":[{"name":"REQUEST_END","ns":20}]},'
        '{"id":1,"timestamps":[{"name":"HTTP_SEND_START","ns":30}]},'
        '{"id":2,"model_name":"step","model_version":1,"parent_id":1},'
        '{"id":2,"timestamps":[{"name":"REQUEST_START","ns":10}]},'
        '{"id":2,"timestamps":[{"name":"REQUEST_END","ns":20}]}'
    )


def test_each_level_shows_its_own_objects() -> None:
    trace = trace_of(3, setting_of())
    trace.tensors.append(INPUT)
    shown = {"name": "IN", "data": "1,2", "shape": "1,2", "dtype": "INT32"}
    tensor = {"id": 3, "activity": "TENSOR_QUEUE_INPUT", "tensor": shown}
    assert objects(trace, ("TENSORS",)) == [tensor]
    assert tensor not in objects(trace)
    assert len(objects(trace, ("TIMESTAMPS", "TENSORS"))) == 4
    trace.tensors.clear()
    assert trace_text(trace, ("TENSORS",)) == ""


@pytest.mark.parametrize(
    ("datatype", "content", "data"),
    [
        ("BOOL", b"\1\0", "1,0"),
        ("INT64", np.array([-1, 2**62]).tobytes(), "-1,4611686018427387904"),
        ("FP32", np.array([0.5, 3, 1e10], "<f4").tobytes(), "0.5,3,1e+10"),
        ("UINT8", b"a\xff", "a,\xff"),
        ("FP16", b"\0\0", ""),
        ("BF16", b"\0\0", ""),
        ("BYTES", pack_bytes([b"a", b"", b'"']), '"a","","""'),
        # Shortened contents: only whole elements are shown.
        ("INT32", b"\1\0\0\0\2\0", "1"),
        ("BYTES", pack_bytes([b"abc", b"defg"])[:-1], '"abc"'),
        ("BYTES", pack_bytes([b"abc"]) + b"\1\0", '"abc"'),
    ],
)
def test_elements_are_shown_as_triton_shows_them(datatype: str, content: bytes, data: str) -> None:
    trace = trace_of(1, setting_of())
    trace.tensors.append(TracedTensor("TENSOR_BACKEND_OUTPUT", "OUT", datatype, (2,), content))
    assert objects(trace, ("TENSORS",))[0]["tensor"]["data"] == data
