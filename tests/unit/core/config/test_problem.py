"""Reading the files of a model."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from trident.core.config.problem import read_file

SIZE = 8


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "it is not a regular file"),
        (a_socket, "No such device or address"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
        # A file of the kernel has no size, and may have no end: /proc/kmsg waits for the next message.
        (lambda path: path.symlink_to("/proc/self/status"), "it is not a regular file"),
        (lambda path: path.write_bytes(bytes(SIZE + 1)), f"it has {SIZE + 1} bytes, and may have {SIZE}"),
    ],
)
def test_pipes_and_endless_files_are_not_read(make: Callable[[Path], object], reason: str, tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(OSError) as caught:  # noqa: PT011
        read_file(tmp_path / "x", SIZE)
    assert caught.value.strerror == reason


@pytest.mark.parametrize("content", [b"", bytes(SIZE)])
def test_regular_files_are_read_completely(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    assert read_file(tmp_path / "x", SIZE) == content
