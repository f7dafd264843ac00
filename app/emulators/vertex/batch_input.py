"""The records of a batch prediction job's input, in the file formats.

Source: docs/spec/vertex.md section A5.
"""

from __future__ import annotations

import base64
import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from app.emulators.common.units import size
from app.emulators.vertex.artifacts import STORAGE_SCHEME
from core.errors import ConfigInvalid

_LONGEST_LINE = 64 << 20
_LARGEST_FILE = 64 << 20


class InstancesFormat(StrEnum):
    """The formats by the platform's names."""

    JSONL = "jsonl"
    CSV = "csv"
    FILE_LIST = "file-list"


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One instance as read from the input, or with `fault` the reason why it cannot be read."""

    value: Any
    fault: str = ""


def format_of(path: Path) -> InstancesFormat:
    """The format by the suffix of a file; a file list for any other suffix."""
    return {".jsonl": InstancesFormat.JSONL, ".csv": InstancesFormat.CSV}.get(
        path.suffix.lower(), InstancesFormat.FILE_LIST
    )


def read_records(path: Path, instances_format: InstancesFormat) -> Iterator[InputRecord]:
    """The records of a file in order. Raises ConfigInvalid for a file that cannot be read."""
    try:
        if instances_format is InstancesFormat.CSV:
            yield from _rows(path)
            return
        with path.open("rb") as file:
            for line in _lines(path, file):
                yield _document(line) if instances_format is InstancesFormat.JSONL else _file(path.parent, line)
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read: {error.strerror or error}") from error


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The lines that are not empty."""
    while line := file.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise ConfigInvalid(f"{path} has a line of more than {size(_LONGEST_LINE)}")
        if text := line.strip():
            yield text


def _document(line: bytes) -> InputRecord:
    try:
        return InputRecord(orjson.loads(line))
    except orjson.JSONDecodeError as error:
        return InputRecord(line.decode(errors="replace"), f"the line is not JSON: {error}")


def _rows(path: Path) -> Iterator[InputRecord]:
    """Each row as an object by the header's names; a field in quotes is text, any other field a number."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        first = csv.reader(file)
        header = next(first, None)
        if header is None:
            raise ConfigInvalid(f"{path} is empty", hint="its first row names the columns")
        if len(set(header)) != len(header):
            raise ConfigInvalid(f"{path} has two columns of one name")
        rows = csv.reader(file, quoting=csv.QUOTE_NONNUMERIC, strict=True)
        while True:
            try:
                row: list[Any] | None = next(rows, None)
            except (ValueError, csv.Error) as error:
                yield InputRecord(None, f"line {first.line_num + rows.line_num}: {error}")
                continue
            if row is None:
                return
            if row:
                yield _row(header, row, first.line_num + rows.line_num)


def _row(header: list[str], row: list[Any], number: int) -> InputRecord:
    value = [None if type(each) is float and not math.isfinite(each) else each for each in row]
    if None in value:
        return InputRecord(value, f"line {number} has a number that JSON does not have")
    if len(row) != len(header):
        return InputRecord(value, f"line {number} has {len(row)} fields, and there are {len(header)} columns")
    return InputRecord(dict(zip(header, value, strict=True)))


def _file(folder: Path, line: bytes) -> InputRecord:
    """The content of the file that the line names, relative to the folder of the list."""
    name = line.decode(errors="surrogateescape")
    if name.startswith(STORAGE_SCHEME):
        return InputRecord(name, f"{name} is not on this machine; the emulator reads files")
    path = folder / name
    try:
        if not path.is_file():
            return InputRecord(_shown(name), "there is no such file")
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        return InputRecord(_shown(name), f"the file cannot be read: {error}")
    if len(content) > _LARGEST_FILE:
        return InputRecord(_shown(name), f"the file has more than {size(_LARGEST_FILE)}")
    return InputRecord({"b64": base64.b64encode(content).decode()})


def _shown(name: str) -> str:
    return name.encode(errors="replace").decode()
