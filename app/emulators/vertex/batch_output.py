"""The files that a batch prediction job leaves.

Source: docs/spec/vertex.md section A5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import orjson

from core.errors import ConfigInvalid

_PREDICTIONS, _ERRORS = "predictions_0001.jsonl", "errors_0001.jsonl"
_CANONICAL = {
    "CANCELLED": 1,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}
_UNKNOWN = 2


class BatchOutput:
    """A context manager. `folder` is made where it is missing; a file is made with its first line."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigInvalid where the folder cannot be, or holds the output of another job."""
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigInvalid(f"{folder} cannot be made: {error.strerror or error}") from error
        for name in (_PREDICTIONS, _ERRORS):
            if (folder / name).exists():
                raise ConfigInvalid(f"{folder / name} is there already", hint="name another folder for the output")

    def __enter__(self) -> BatchOutput:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def add_prediction(self, label: dict[str, Any], prediction: Any) -> None:
        """Raises OSError, as `add_error` does."""
        self._add(_PREDICTIONS, {**label, "prediction": prediction})

    def add_error(self, label: dict[str, Any], status: str, message: str) -> None:
        """`status` is the name of a canonical code."""
        code = _CANONICAL.get(status, _UNKNOWN)
        self._add(_ERRORS, {**label, "error": {"code": code, "message": message}})

    def _add(self, name: str, line: dict[str, Any]) -> None:
        if name not in self._files:
            self._files[name] = (self._folder / name).open("xb")
        self._files[name].write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
