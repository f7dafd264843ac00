"""Cures for model files that ONNX Runtime does not load."""

from __future__ import annotations

import os
import re
from pathlib import Path

from core.backends.file_content import content_hint
from core.backends.onnxruntime.graph_changes import missing_locale

_TOO_NEW_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_TOO_NEW_OPSET = re.compile(r"Opset (\d+) is under development.*?domain (\S+) is till opset (\d+)", re.DOTALL)
_UNREADABLE = "Protobuf parsing failed"
_FORBIDDEN = re.compile(r"system error number 13\b|errcode = 13\b|Permission denied")


def load_hint(text: str, path: Path, version: str) -> str | None:
    """The cure for ONNX Runtime's message `text` about the file at `path`; None if it is not known.

    `version` is that of the installed ONNX Runtime.
    """
    if _FORBIDDEN.search(text):
        return f"user {os.geteuid()}, as which the server runs, may not read the files: chmod -R a+rX {path.parent}"
    if match := _TOO_NEW_IR.search(text):
        given, known = match.groups()
        return (
            f"the model has IR version {given}, and ONNX Runtime {version} reads up to {known}: set model.ir_version = "
            f"{known} before you save it, export it with an older onnx package, or install a newer onnxruntime"
        )
    if match := _TOO_NEW_OPSET.search(text):
        given, domain, known = match.groups()
        return (
            f"the model has opset {given} of {domain}, and ONNX Runtime {version} knows up to {known}: export it with "
            f"opset {known} or lower, or install a newer onnxruntime"
        )
    if locale := missing_locale(text):
        return (
            f"install the locale (on Debian and Ubuntu: apt-get install locales && localedef -i {locale.split('.')[0]} "
            f"-f UTF-8 {locale}), or name another one in the model's StringNormalizer"
        )
    if hint := content_hint(path):
        return hint
    if _UNREADABLE in text and path.is_file():
        size = path.stat().st_size
        return f"the file ({size} bytes) is not an ONNX model, or incomplete: compare it with the original"
    return None
