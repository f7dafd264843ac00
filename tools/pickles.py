"""Scans pickles, which are programs that run when they are read, by picklescan. It reads and runs none of them."""

from __future__ import annotations

import io
import logging
import math
import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trident.core.backends.model_files import start_of
from trident.core.errors import installation

_SUFFIXES = (".pkl", ".pickle", ".joblib")


@dataclass(frozen=True, slots=True)
class ScannedPickle:
    """`found` is what was found as text; `is_dangerous`: it calls what no model needs, or was not read to its end."""

    path: Path
    found: str
    is_dangerous: bool


def scan_pickles(path: Path) -> Iterator[ScannedPickle]:
    """Scan the pickles at or below `path`, and those in archives. Raises OSError."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        start = (start_of(file, 2) or b"") if file.is_file() else b""
        if file.is_file() and (start[:1] == b"\x80" or start == b"PK" or file.suffix in _SUFFIXES):
            scanned = _scan(file, is_archive=start == b"PK")
            if scanned is not None:
                yield scanned


def _scan(file: Path, *, is_archive: bool) -> ScannedPickle | None:
    """None for an archive without pickles."""
    try:
        from picklescan.scanner import SafetyLevel, scan_pickle_bytes, scan_zip_bytes
    except ImportError:
        if is_archive:
            return None
        return ScannedPickle(file, f"it is not scanned, as picklescan is not installed: {installation('scan')}", True)
    logging.getLogger("picklescan").setLevel(logging.CRITICAL)  # the text has it
    end = None
    try:
        with file.open("rb") as content:
            results = [(scan_zip_bytes if is_archive else scan_pickle_bytes)(content, file.name)]
            if results[0].scan_err and not is_archive:
                content.seek(0)
                pickles, end = _without_arrays(content)
                results = [scan_pickle_bytes(io.BytesIO(each), file.name) for each in pickles]
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile) as error:
        return ScannedPickle(file, f"picklescan cannot read it: {error}", True)
    globals_of = [each for result in results for each in result.globals]
    names = {
        level: sorted({f"{each.module}.{each.name}" for each in globals_of if each.safety is level})
        for level in SafetyLevel
    }
    parts = [f"{level.value}: {', '.join(listed)}" for level, listed in names.items() if listed]
    is_cut = end is not None and end < file.stat().st_size
    if is_cut:
        parts.append(f"what follows byte {end} is not scanned")
    elif not (parts or is_archive or _is_whole(file)):
        parts.append("nothing that it can read, as of a compressed file")
    if not parts:
        return None
    is_dangerous = bool(is_cut or names[SafetyLevel.Dangerous] or not globals_of)
    return ScannedPickle(file, f"picklescan finds {'; '.join(parts)}", is_dangerous)


# Errors of pickletools and of the functions below for bytes that are not a pickle.
_UNREADABLE = (ValueError, EOFError, LookupError, TypeError, OverflowError, MemoryError, struct.error)


def _is_whole(file: Path) -> bool:
    """Return whether a file is a pickle up to an end of one."""
    try:
        with file.open("rb") as content:
            for _ in pickletools.genops(content):
                pass
    except _UNREADABLE:
        return False
    return True


# --- joblib's files: opcodes, with the numbers of each array behind the BUILD of its wrapper

_WRAPPER = "joblib.numpy_pickle NumpyArrayWrapper"
_MARK = object()


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


@dataclass(slots=True)
class _Object:
    """An object that a pickle makes: by calling `of` with `given`; then it gets its state."""

    of: str
    given: Any
    state: Any = None


def _without_arrays(content: BinaryIO) -> tuple[list[bytes], int]:
    """The opcodes of a joblib file and those of the pickles in it, without raw arrays, and where opcodes end that can
    be read."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    parts: list[bytes] = []
    inner: list[bytes] = []
    start = end = 0
    try:
        for opcode, argument, _ in pickletools.genops(content):
            _follow(opcode, argument, stack, memo)
            end = content.tell()
            array = stack[-1] if opcode.name == "BUILD" else None
            if not isinstance(array, _Object) or array.of != _WRAPPER:
                continue
            size = _size_of(array.state)
            parts.append(_between(content, start, end))
            if size is None:
                for _ in pickletools.genops(content):
                    pass
                inner.append(_between(content, end, content.tell()))
            else:
                padding = content.read(1)[0] if array.state.get("numpy_array_alignment_bytes") is not None else 0
                content.seek(padding + size, os.SEEK_CUR)
            start = end = content.tell()
    except _UNREADABLE:
        pass
    return [b"".join([*parts, _between(content, start, end)]), *inner], end


def _between(content: BinaryIO, start: int, end: int) -> bytes:
    """Read these bytes, and go on behind them."""
    content.seek(start)
    return content.read(end - start)


def _follow(opcode: pickletools.OpcodeInfo, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """Do to the stack what an opcode does, with names in place of what they name. Raises what _UNREADABLE says."""
    name = opcode.name
    if name == "MEMOIZE" or name.endswith("PUT"):
        memo[len(memo) if argument is None else argument] = stack[-1]
    elif name == "MARK":
        stack.append(_MARK)
    elif name == "DUP":
        stack.append(stack[-1])
    elif name.endswith("GET"):
        stack.append(memo[argument])
    else:
        before = [each.name for each in opcode.stack_before]
        taken: list[Any] = []
        if "mark" in before:
            while (top := stack.pop()) is not _MARK:
                taken.append(top)
            before = before[: before.index("mark")]
        taken = [stack.pop() for _ in before][::-1] + taken[::-1]
        if opcode.stack_after:
            stack.append(_made(opcode, argument, taken))


def _made(opcode: pickletools.OpcodeInfo, argument: Any, taken: list[Any]) -> Any:
    """Return the value that an opcode puts on the stack; None for values that no wrapper consists of."""
    name = opcode.name
    if name == "STACK_GLOBAL":
        return _Global(" ".join(taken))
    if name == "GLOBAL":
        return _Global(argument)
    if name.startswith("NEW") and not taken:
        return name == "NEWTRUE"
    if "TUPLE" in name:
        return tuple(taken)
    if name in ("APPEND", "APPENDS", "ADDITEMS"):
        return taken[0]
    if name in ("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"):
        of = taken.pop(0) if name.startswith("SET") else {}
        if isinstance(of, dict):
            of.update((key, value) for key, value in zip(taken[::2], taken[1::2], strict=True) if type(key) is str)
        return of
    if name in ("REDUCE", "NEWOBJ"):
        return _Object(taken[0].name, taken[1]) if isinstance(taken[0], _Global) else None
    if name == "BUILD":
        made, state = taken
        if isinstance(made, _Object):
            both = isinstance(made.state, dict) and isinstance(state, dict)
            made.state = {**made.state, **state} if both else state
        return made
    return None if opcode.stack_before else argument


def _size_of(state: Mapping[str, Any]) -> int | None:
    """The bytes of an array; None for one of objects, which are a pickle. Raises what _UNREADABLE says."""
    shape, dtype = state["shape"], state["dtype"]
    kind = dtype.given[0] if isinstance(dtype, _Object) and dtype.of == "numpy dtype" else ""
    if not re.fullmatch(r"[A-Za-z]\d*", kind) or not all(type(each) is int and each >= 0 for each in shape):
        raise ValueError("its datatype or shape is not as joblib writes it")
    size, flags = dtype.state[5], dtype.state[7]
    if kind[0] == "O" or flags & 1:
        return None
    return int(math.prod(shape) * (np.dtype(kind).itemsize if size == -1 else size))
