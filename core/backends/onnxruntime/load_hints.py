"""Cures for model files that ONNX Runtime does not load."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from core.backends.file_content import content_hint
from core.backends.onnxruntime.graph_file import external_files, missing_locale

_TOO_NEW_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_TOO_NEW_OPSET = re.compile(r"Opset (\d+) is under development.*?domain (\S+) is till opset (\d+)", re.DOTALL)
# How ONNX Runtime begins its texts about weights in other files. An unreadable one has only "SystemError : 13".
_OF_WEIGHTS = re.compile(r"[Ee]xternal data|External initializer|Deserialize tensor|SystemError")
MayRead = Callable[[Path, int], bool]
_UNREADABLE = "Protobuf parsing failed"
_FORBIDDEN = re.compile(r"system error number 13\b|errcode = 13\b|Permission denied")


def load_hint(text: str, path: Path, version: str, may_read: MayRead = os.access) -> str | None:
    """The cure for ONNX Runtime's message `text` about the file at `path`; None if it is not known.

    `version` is that of the installed ONNX Runtime.
    """
    if _OF_WEIGHTS.search(text) and (hint := _weights_hint(path, may_read)):
        return hint
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


def _weights_hint(path: Path, may_read: MayRead) -> str | None:
    """What is wrong with one of the other files that have the weights of the model at `path`; None if nothing is."""
    try:
        files = external_files(path.read_bytes())
    except OSError:
        return None
    allowed = (path.parent.resolve(), path.resolve().parent)
    for name, size in files.items():
        file = path.parent / name
        where, real = f"the weights of the model are in '{name}'", file.resolve()
        if not file.exists():
            link = f", a link to {real}, which is not there" if file.is_symlink() else ", which is missing"
            return f"{where}{link}: copy the file from where the model was saved into {path.parent}"
        if not any(real.is_relative_to(folder) for folder in allowed):
            cure = "replace the link by the file" if file.is_symlink() else "save the model with its weights beside it"
            return f"{where}, which is outside of the folder of the model file, at {real}: {cure}"
        if not file.is_file():
            return f"{where}, which is not a file: copy it again from where the model was saved"
        if not may_read(file, os.R_OK):
            return f"{where}, which user {os.geteuid()}, as which the server runs, may not read: chmod a+r {file}"
        if hint := content_hint(file):
            return f"{where}: {hint}"
        if file.stat().st_size < size:
            return f"{where}, which was cut: it has {file.stat().st_size} of at least {size} bytes, copy it again"
    return None
