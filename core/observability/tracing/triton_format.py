"""Traces as the objects of Triton's trace file, which its summary script reads.

Source: docs/spec/trace-and-log.md section 3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from core.inference.tensors import BY_NAME, BYTES
from core.observability.tracing.settings import TENSORS, TIMESTAMPS
from core.observability.tracing.trace import Event, Trace, TracedTensor

# Written as nothing, as in Triton.
_UNSHOWN = frozenset({"FP16", "BF16"})
_CHARACTERS = frozenset({"INT8", "UINT8"})


def trace_text(root: Trace, levels: tuple[str, ...]) -> str:
    """The objects of a request and of those that it led to, separated by commas; empty if there is nothing to show."""
    return ",".join(
        [each for trace in root.family() for each in _objects(trace, TIMESTAMPS in levels, TENSORS in levels)]
    )


def _objects(trace: Trace, has_times: bool, has_tensors: bool) -> Iterator[str]:
    number = trace.number
    if has_times:
        for event in trace.ahead:
            yield _timestamp(number, event)
        yield _header(trace)
        for event in trace.events:
            yield _timestamp(number, event)
    if has_tensors:
        for tensor in trace.tensors:
            yield _tensor(number, tensor)
    if has_times:
        for event in trace.behind:
            yield _timestamp(number, event)


def _header(trace: Trace) -> str:
    header: dict[str, Any] = {
        "id": trace.number,
        "model_name": trace.model_name,
        "model_version": trace.model_version,
    }
    if trace.request_id:
        header["request_id"] = trace.request_id
    if trace.parent is not None:
        header["parent_id"] = trace.parent.number
    return _compact(header)


def _timestamp(number: int, event: Event) -> str:
    # The names are the server's own. JSON's encoder takes ten times as long.
    name, ns = event
    return f'{{"id":{number},"timestamps":[{{"name":"{name}","ns":{ns}}}]}}'


def _tensor(number: int, tensor: TracedTensor) -> str:
    shown = {
        "name": tensor.name,
        "data": _elements(tensor),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype,
    }
    return _compact({"id": number, "activity": tensor.activity, "tensor": shown})


def _elements(tensor: TracedTensor) -> str:
    """The elements as Triton shows them. Those that are incomplete at the end of a shortened content are left out."""
    name, content = tensor.datatype, tensor.content
    datatype = BY_NAME[name]
    if datatype is BYTES:
        return ",".join([_quoted(each) for each in _strings(content)])
    if name in _UNSHOWN:
        return ""
    if name in _CHARACTERS:
        return ",".join([chr(byte) for byte in content])
    size = datatype.dtype.itemsize
    values = np.frombuffer(content[: len(content) // size * size], datatype.dtype)
    if name == "BOOL":
        return ",".join(["1" if value else "0" for value in values])
    return ",".join([f"{value:g}" if values.dtype.kind == "f" else str(value) for value in values.tolist()])


def _strings(content: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 4 <= len(content):
        size = int.from_bytes(content[at : at + 4], "little")
        if at + 4 + size > len(content):
            break
        found.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def _quoted(text: bytes) -> str:
    return f'"{text.decode("utf-8", "replace")}"'


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))
