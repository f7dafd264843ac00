"""Scans pickles, which are programs that run when they are read, by picklescan. It reads and runs none of them."""

from __future__ import annotations

import logging
import pickletools
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    try:
        with file.open("rb") as content:
            result = (scan_zip_bytes if is_archive else scan_pickle_bytes)(content, file.name)
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile) as error:
        return ScannedPickle(file, f"picklescan cannot read it: {error}", True)
    names = {
        level: sorted(f"{each.module}.{each.name}" for each in result.globals if each.safety is level)
        for level in SafetyLevel
    }
    parts = [f"{level.value}: {', '.join(listed)}" for level, listed in names.items() if listed]
    if result.scan_err:
        parts.append("the rest cannot be read")
    elif not (parts or is_archive or _is_whole(file)):
        parts.append("nothing that it can read, as of a compressed file")
    if not parts:
        return None
    is_dangerous = bool(result.scan_err or names[SafetyLevel.Dangerous] or not result.globals)
    return ScannedPickle(file, f"picklescan finds {'; '.join(parts)}", is_dangerous)


def _is_whole(file: Path) -> bool:
    """Return whether a file is a pickle up to an end of one."""
    try:
        with file.open("rb") as content:
            for _ in pickletools.genops(content):
                pass
    except (ValueError, EOFError, UnicodeError, struct.error):
        return False
    return True
