"""Archives of environments, as conda-pack writes them: each is extracted once, and again when it has changed.

Source: docs/spec/python-backend.md section 4.5, EXECUTION_ENV_PATH.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from lzma import LZMAError
from pathlib import Path

from core.errors import ModelLoadFailed
from core.repository.cache.disk_space import free_bytes
from core.repository.cache.file_lock import lock_exclusive
from core.repository.cache.private_folder import make_private

_log = logging.getLogger("trident.backends.python")

# What is left free on the disk, so that other programs can go on.
_RESERVE = 64 << 20


def extracted(archive: Path, cache: Path, *, free: Callable[[Path], int] = free_bytes) -> Path:
    """The folder in `cache` with the content of `archive`, a tar file with any compression. Blocks while it extracts.

    Loads and servers that need the same archive at the same time extract it once. `free` is the number of bytes that
    can be written to the disk of a folder. Raises ModelLoadFailed, RepositoryUnavailable.
    """
    make_private(cache)
    try:
        status = archive.stat()
        key = f"{archive}\0{status.st_mtime_ns}\0{status.st_size}"
        folder = cache / f"archive-{hashlib.sha256(os.fsencode(key)).hexdigest()[:24]}"
        lock = lock_exclusive(folder.with_suffix(".lock"))
        try:
            if not folder.is_dir():
                _extract(archive, folder, free)
        finally:
            lock.release()
    except (OSError, EOFError, zlib.error, LZMAError, tarfile.TarError) as error:
        raise ModelLoadFailed(
            f"failed to extract the environment '{archive}': {error}",
            hint="EXECUTION_ENV_PATH is a .tar.gz file that conda-pack wrote, or a folder with an environment",
        ) from error
    return folder


def _extract(archive: Path, folder: Path, free: Callable[[Path], int]) -> None:
    _log.info("extracting the environment %s into %s", archive, folder)
    began = time.monotonic()
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with tarfile.open(archive, "r|*") as tar:
            # The filter refuses members that would leave the folder, links that lead out of it, and devices.
            tar.extractall(partial, members=_fitting(tar, partial.parent, free), filter="data")
        partial.mkdir(exist_ok=True)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _log.info("extracted the environment %s in %.1f s", archive, time.monotonic() - began)


def _fitting(tar: tarfile.TarFile, disk: Path, free: Callable[[Path], int]) -> Iterator[tarfile.TarInfo]:
    """The members, while the disk has room for the next one."""
    for member in tar:
        room = free(disk) - _RESERVE
        if member.size > room:
            raise OSError(
                f"no space left on the disk of {disk}: '{member.name}' needs {member.size} bytes, "
                f"{max(0, room)} are free"
            )
        yield member
