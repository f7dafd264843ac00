"""Unpacks a model's .tar.gz as the platform does; the container cannot write to its files.

No file is written through a link: links are created last, in folders that are not links themselves, and none may lead
out of the folder. This does not rely on tarfile's own filters, which had gaps.
Source: docs/spec/sagemaker.md section A4.
"""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from app.emulators.common.interrupted import Interrupted
from app.emulators.common.read_only_folder import make_read_only
from core.errors import ConfigInvalid
from core.observability.log_text import escaped

MEMBERS_AT_MOST = 100_000
# tarfile reads content in pieces of 16 KiB to 1 MiB. A larger read comes from a header with a false size.
_LARGEST_READ = 16 << 20
_LONGEST_NAME = 200
_PIECE = 1 << 20
_HOW = "make it with: tar -czf model.tar.gz -C MODEL_DIR ."


def unpack(
    archive: Path,
    folder: Path,
    most_bytes: int,
    most_members: int = MEMBERS_AT_MOST,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Unpack `archive` into the existing empty `folder` and make it read-only. Blocks on the disk.

    Raises ConfigInvalid if the file is not such an archive, unpacks to more than `most_bytes`, has more than
    `most_members` members, or has members outside of the folder or of another type; Interrupted soon after
    `is_stopped` returns true. After an error the caller removes the folder.
    """
    try:
        with gzip.open(archive) as plain, tarfile.open(fileobj=_header_guard(plain), mode="r:") as tar:
            most_bytes = min(most_bytes, shutil.disk_usage(folder).free)
            _Unpacking(archive, folder, most_bytes, most_members, is_stopped).run(tar)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ConfigInvalid(f"{_shown(str(archive))} is not a .tar.gz archive: {error}", hint=_HOW) from error
    except OSError as error:
        raise ConfigInvalid(f"cannot unpack {_shown(str(archive))}: {error}", hint=_HOW) from error
    make_read_only(folder)


class _Unpacking:
    """The unpacking of one archive."""

    def __init__(
        self, archive: Path, folder: Path, most_bytes: int, most_members: int, is_stopped: Callable[[], bool]
    ) -> None:
        self._archive = archive
        self._folder = folder.resolve()
        self._left = most_bytes
        self._most_bytes = most_bytes
        self._most_members = most_members
        self._is_stopped = is_stopped
        self._links: list[tuple[Path, tarfile.TarInfo]] = []

    def run(self, tar: tarfile.TarFile) -> None:
        for number, member in enumerate(tar, 1):
            if number > self._most_members:
                raise self._refused(f"it has more than {self._most_members} members")
            self._take(tar, member)
        for path, member in self._links:
            self._make_link(path, member)
        for path, member in self._links:
            if not _is_within(path, self._folder):
                raise self._refused(f"its link '{_shown(member.name)}' leads out of the folder")

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._check_stop()
        path = self._path_of(member.name)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif member.isreg():
            self._write(tar, member, path)
        elif member.issym() or member.islnk():
            self._links.append((path, member))
        else:
            raise self._refused(f"its member '{_shown(member.name)}' is a device or a pipe")

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        self._left -= member.size
        if self._left < 0:
            raise self._refused(f"it unpacks to more than {self._most_bytes} bytes")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of two members with the same name the later one wins
        with cast(BinaryIO, tar.extractfile(member)) as content, path.open("xb") as file:
            while piece := content.read(_PIECE):
                file.write(piece)
                self._check_stop()

    def _check_stop(self) -> None:
        if self._is_stopped():
            raise Interrupted

    def _make_link(self, path: Path, member: tarfile.TarInfo) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.resolve() != path.parent:
            raise self._refused(f"its member '{_shown(member.name)}' lies behind a link")
        if "\0" in member.linkname:
            raise self._refused(f"its link '{_shown(member.name)}' leads nowhere")
        if member.issym():
            path.symlink_to(member.linkname)
            return
        target = self._path_of(member.linkname)
        if not (target.is_file() and _is_within(target, self._folder)):
            raise self._refused(f"its link '{_shown(member.name)}' is not to a file in it")
        os.link(target, path)

    def _path_of(self, name: str) -> Path:
        """The path of the member `name`; no part of it is a link, because links are created last."""
        parts = [part for part in name.split("/") if part not in ("", os.curdir)]
        if name.startswith("/") or os.pardir in parts or "\0" in name:
            raise self._refused(f"its member '{_shown(name)}' lies outside of the folder")
        return self._folder.joinpath(*parts)

    def _refused(self, why: str) -> ConfigInvalid:
        return ConfigInvalid(f"{_shown(str(self._archive))} cannot be unpacked: {why}", hint=_HOW)


class _HeaderGuard:
    """The file below a TarFile, which would read any length that a header gives for a file name."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, length: int) -> bytes:
        if length > _LARGEST_READ:
            raise tarfile.ReadError(f"a header of {length} bytes")
        return self._file.read(length)

    def seek(self, position: int) -> int:
        return self._file.seek(position)

    def tell(self) -> int:
        return self._file.tell()


def _header_guard(file: gzip.GzipFile) -> BinaryIO:
    return cast(BinaryIO, _HeaderGuard(cast(BinaryIO, file)))


def _is_within(path: Path, folder: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a loop of links: `resolve` raises or not, by Python's version
            return False
    return path.resolve().is_relative_to(folder)


def _shown(text: str) -> str:
    return escaped(text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}...")
