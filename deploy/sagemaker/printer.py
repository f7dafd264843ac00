"""Prints the plan of a dry run and the progress of an execution."""

from __future__ import annotations

import json
from typing import Any, TextIO

from deploy.sagemaker.plan import Call, Plan, Wait

_LONGEST_TEXT = 2000


class Printer:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def plan(self, plan: Plan) -> None:
        """Print a line per call, `SERVICE.OPERATION {parameters as JSON}`; a wait is followed by its goal."""
        for step in plan:
            if isinstance(step, Wait):
                self.line(f"{written(step.call)}  # {step.goal}")
            else:
                self.line(written(step))

    def line(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def written(call: Call) -> str:
    return f"{call.name} {json.dumps(call.parameters, default=shown_bytes, ensure_ascii=False)}"


def shown_bytes(value: Any) -> str:
    """A body as text if it is short text, otherwise its size."""
    if isinstance(value, bytes):
        text = value.decode("ascii", errors="replace")
        if len(value) <= _LONGEST_TEXT and text.replace("\n", "").isprintable() and "\ufffd" not in text:
            return text
        return f"<{len(value)} bytes>"
    raise TypeError(f"a parameter of the type {type(value).__name__}")
