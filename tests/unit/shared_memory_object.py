"""An object of POSIX shared memory for a test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trident.core.shared_memory import DIRECTORY


def path_of(key: str) -> Path:
    """The file behind an object."""
    return Path(DIRECTORY, key.lstrip("/"))


@contextmanager
def shared_memory_object(size: int, content: bytes = b"") -> Iterator[str]:
    """The key of an object of `size` bytes that begins with `content`; unlinked at the end."""
    key = f"/trident_test_{uuid.uuid4().hex}"
    path = path_of(key)
    try:
        path.write_bytes(content)
        os.truncate(path, size)
        yield key
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
