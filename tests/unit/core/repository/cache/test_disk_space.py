"""The errors for a failing disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from trident.core.repository.disk import disk_failure, free_bytes


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_failure_names_needed_and_free_bytes(tmp_path: Path, number: int) -> None:
    failure = disk_failure(OSError(number, "the reason"), tmp_path, 17)
    assert failure.message.startswith(f"the model cache in {tmp_path} has no room: the reason; 17 bytes are needed, ")


def test_other_disk_failure_names_the_reason(tmp_path: Path) -> None:
    failure = disk_failure(OSError(errno.EROFS, "Read-only file system"), tmp_path, 17)
    assert failure.message == f"failed to use the model cache in {tmp_path}: Read-only file system"


def test_free_bytes_of_a_directory_are_positive(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
