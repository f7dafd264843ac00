"""Runs a session on text, for models with BYTES tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.backends.in_process.instance import Run
from core.backends.onnxruntime.strings import to_bytes, to_text
from core.inference.tensors import Array

# Text is faster, but its conversion is one step in C, during which no other thread runs: 30 milliseconds for so many.
MANY = 1 << 18


class TextRun:
    """Runs a session with BYTES inputs or outputs: as text if they are UTF-8, otherwise by `values`.

    `splits`: `values` takes BYTES, in steps that are short; then very many go to it, too.
    """

    def __init__(self, run: Run, values: Run, *, splits: bool, many: int = MANY) -> None:
        self._run = run
        self._values = values
        self._most = many if splits else None

    def __call__(self, names: list[str], feed: Mapping[str, Array], run_options: Any) -> Sequence[Array]:
        if self._most is not None and any(a.dtype.hasobject and a.size > self._most for a in feed.values()):
            return self._values(names, feed, run_options)
        try:
            texts = {name: to_text(array) if array.dtype.hasobject else array for name, array in feed.items()}
            results = self._run(names, texts, run_options)
        except UnicodeDecodeError:
            # An input is not UTF-8 or, after the run, an output.
            return self._values(names, feed, run_options)
        return [to_bytes(result) if result.dtype.hasobject else result for result in results]
