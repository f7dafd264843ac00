"""The output files of a batch prediction job.

Source: docs/spec/vertex.md section A5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import orjson

from app.emulators.vertex.canonical_code import CanonicalCode
from core.errors import ConfigInvalid

_PREDICTIONS, _ERRORS = "predictions_0001.jsonl", "errors_0001.jsonl"


class BatchOutput:
    """Writes the files; a context manager. A missing `folder` is created, and each file with its first line."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigInvalid if the folder cannot be created or has the output of another job."""
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigInvalid(f"{folder} cannot be created: {error.strerror or error}") from error
        for name in (_PREDICTIONS, _ERRORS):
            if (folder / name).exists():
                raise ConfigInvalid(f"{folder / name} exists already", hint="name another folder for the output")

    def __enter__(self) -> BatchOutput:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def add_prediction(self, label: dict[str, Any], prediction: Any) -> None:
        """Raises OSError, as `add_error` does."""
        self._add(_PREDICTIONS, {**label, "prediction": prediction})

    def add_error(self, label: dict[str, Any], code: CanonicalCode, message: str) -> None:
        self._add(_ERRORS, {**label, "error": {"code": code, "message": message}})

    def _add(self, name: str, line: dict[str, Any]) -> None:
        if name not in self._files:
            self._files[name] = (self._folder / name).open("xb")
        self._files[name].write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
