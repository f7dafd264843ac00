"""A plan as text for a person."""

from __future__ import annotations

import base64
import json
from typing import Any

from deploy.vertex.call import Call, EndpointCall

_WIDTH = 110
_LONGEST = 400
_INDENT = "  "


def shown(call: Call) -> str:
    """The call with its message as JSON; long and binary contents are abbreviated."""
    document = call.document()
    lines = [f"# {call.title}"]
    if call.after_s:
        lines.append(f"# after {call.after_s:g} s")
    if call.best_effort:
        lines.append("# best effort: the plan continues if it fails")
    if isinstance(call, EndpointCall):
        lines.append(f"# POST {call.url}")
        lines += [f"# {name}: {value}" for name, value in call.headers.items()]
        if "httpBody" in document:
            document["httpBody"]["data"] = _content(document["httpBody"].get("data", ""))
    lines.append(f"{call.service}.{call.rpc} {laid_out(document)}")
    return "\n".join(lines)


def laid_out(value: Any, indent: str = "") -> str:
    """Indented JSON, in which every value that fits is on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= _WIDTH or not isinstance(value, dict | list) or _is_plain(value):
        return flat
    inner = indent + _INDENT
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {laid_out(each, inner)}" for name, each in value.items()]
    else:
        parts = [laid_out(each, inner) for each in value]
    start, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return start + "\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}{end}"


def _is_plain(value: Any) -> bool:
    """Whether a value is a list of numbers, which need not be on separate lines."""
    return isinstance(value, list) and not any(isinstance(each, dict | list | str) for each in value)


def _content(encoded: str) -> str:
    """The beginning of a text, or the number of other bytes."""
    content = base64.b64decode(encoded)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"<{len(content)} bytes>"
    if "\0" in text:
        return f"<{len(content)} bytes>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}<{len(content)} bytes in all>"
