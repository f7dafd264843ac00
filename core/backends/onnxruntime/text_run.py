"""Runs a session on text, for models with BYTES tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.backends.onnxruntime.instance import Run
from core.backends.onnxruntime.strings import to_bytes, to_text
from core.inference.tensors import Array


class TextRun:
    """Runs a session with BYTES inputs or outputs: as text if they are UTF-8, otherwise by `values`."""

    def __init__(self, run: Run, values: Run) -> None:
        self._run = run
        self._values = values

    def __call__(self, names: list[str], feed: Mapping[str, Array], run_options: Any) -> Sequence[Array]:
        try:
            texts = {name: to_text(array) if array.dtype.hasobject else array for name, array in feed.items()}
            results = self._run(names, texts, run_options)
        except UnicodeDecodeError:
            # An input is not UTF-8 or, after the run, an output.
            return self._values(names, feed, run_options)
        return [to_bytes(result) if result.dtype.hasobject else result for result in results]
