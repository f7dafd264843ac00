"""The archives of models: found below a folder or in cloud storage, and unpacked as the platform does.

Source: docs/spec/sagemaker.md section A4.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, Protocol, cast

from trident.app.terminal import drawn
from trident.core.errors import ConfigInvalid, RepositoryUnavailable, ServerError
from trident.core.observability.log import escaped
from trident.core.repository.cloud_sources import GivenUp
from trident.core.repository.location import Scheme, parse_location
from trident.core.repository.opener import SourceOpener
from trident.core.repository.stores.object_store import paths_problem
from trident.tools.emulators.container import Interrupted, make_read_only, remove_folder
from trident.tools.emulators.sagemaker.invocation import ApiError, endpoint_deleted, validation_error

MEMBERS_AT_MOST = 100_000
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
    name = escaped(str(archive))

    def allowed(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        left = most_bytes
        for number, member in enumerate(tar, 1):
            if number > most_members:
                raise _Refused(f"it has more than {most_members} members")
            left -= member.size
            if left < 0:
                raise _Refused(f"it unpacks to more than {most_bytes} bytes")
            yield member

    try:
        most_bytes = min(most_bytes, shutil.disk_usage(folder).free)
        with gzip.open(archive) as plain:

            def read(length: int) -> bytes:
                if is_stopped():
                    raise Interrupted
                return plain.read(length)

            with tarfile.open(fileobj=cast(BinaryIO, SimpleNamespace(read=read)), mode="r|") as tar:
                # The filter refuses members that would leave the folder, links that lead out of it, and devices.
                tar.extractall(folder, members=allowed(tar), filter="data")
    except (_Refused, tarfile.FilterError) as error:
        raise ConfigInvalid(f"{name} cannot be unpacked: {escaped(str(error))}", hint=_HOW) from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ConfigInvalid(f"{name} is not a .tar.gz archive: {error}", hint=_HOW) from error
    except OSError as error:
        raise ConfigInvalid(f"cannot unpack {name}: {error}", hint=_HOW) from error
    make_read_only(folder)


class _Refused(Exception):
    """An archive is larger than the platform allows; the argument says how."""


# ArchiveStorage   the protocol ├── LocalArchives   the files below a folder └── CloudArchives   the objects below a
# prefix, fetched when they are needed


class ArchiveStorage(Protocol):
    """Keys are paths with `/`. Any thread."""

    @contextmanager
    def archive(self, key: str) -> Iterator[Path]:
        """The archive of `key` on the local disk. Blocks. Raises ApiError if there is none or it cannot be fetched."""

    def close(self) -> None:
        """End the fetches in progress soon."""


class LocalArchives:
    """The files below `folder`; links out of it are not followed. Raises ConfigInvalid if it is not a folder."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigInvalid(f"{folder} is not a folder", hint="with --multi-model name the folder of the archives")
        self._folder = folder.resolve()

    @contextmanager
    def archive(self, key: str) -> Iterator[Path]:
        parts = key.split("/")
        path = self._folder.joinpath(*parts)
        is_key = not ({"", os.curdir, os.pardir} & set(parts)) and "\0" not in key
        try:
            is_found = is_key and path.resolve().is_relative_to(self._folder) and path.is_file()
        except (OSError, RuntimeError):  # a name that is too long, a loop of links
            is_found = False
        if not is_found:
            raise _missing(key, "the folder of this endpoint")
        yield path

    def close(self) -> None: ...


class CloudArchives:
    """The objects at `address`. `count` of them are archives now; others may be added while the endpoint runs.

    Raises a ServerError if they cannot be listed or there is none, and Interrupted soon after `stopped` is set.
    """

    def __init__(self, opener: SourceOpener, address: str, stopped: threading.Event) -> None:
        self._opener = opener
        self._folder = opener.open_folder(address)
        self._closed = threading.Event()
        self.location = self._folder.location
        with ended_by(stopped, opener):
            listed = self._folder.objects(stop=stopped)
        self.count = sum(path.endswith(ARCHIVE) for path in listed)
        if not self.count:
            if not listed:
                opener.open(address).check_exists()
            raise ConfigInvalid(f"there is no .tar.gz archive in {self.location}")

    @contextmanager
    def archive(self, key: str) -> Iterator[Path]:
        try:
            stored = None if paths_problem([key]) else self._folder.objects(key, self._closed).get(key)
            if stored is None:
                raise _missing(key, self.location)
            snapshot = self._folder.fetch(key.rpartition("/")[2], {key: stored})
        except (ServerError, GivenUp) as error:
            if self._closed.is_set() or isinstance(error, GivenUp):
                raise endpoint_deleted() from None
            raise validation_error(f"Failed to download model data: {error.message}") from None
        try:
            yield snapshot.path / key
        finally:
            snapshot.release()

    def close(self) -> None:
        self._closed.set()
        self._opener.stop()


def _missing(key: str, place: str) -> ApiError:
    return validation_error(f"Failed to download model data: there is no archive '{escaped(key)}' in {place}")


ARCHIVE = ".tar.gz"
_LOOK_S = 0.1


def is_in_cloud(model: str) -> bool:
    """True for an address in cloud storage, False for a path. Raises ConfigInvalid for a malformed address."""
    return parse_location(model).scheme is not Scheme.LOCAL


@contextmanager
def fetched_model(opener: SourceOpener, address: str, stopped: threading.Event) -> Iterator[Path]:
    """The archive, or the folder, at `address` on the local disk while the context lasts, to be read only.

    Draws the progress on a terminal. Raises ConfigInvalid or RepositoryUnavailable if it cannot be fetched, and
    Interrupted soon after `stopped` is set.
    """
    location = parse_location(address)
    above, _, name = location.text.rpartition("/")
    is_archive = bool(location.prefix) and name.endswith(ARCHIVE)
    folder = opener.open_folder(above if is_archive else address)
    with drawn(opener.progress), ended_by(stopped, opener):
        objects = folder.objects(name if is_archive else "", stopped)
        wanted = {path: stored for path, stored in objects.items() if not is_archive or path == name}
        if not wanted:
            opener.open(location.text).check_exists()
            raise ConfigInvalid(
                f"there is nothing in {location.text}", hint=f"name a folder with a model, or an archive *{ARCHIVE}"
            )
        snapshot = folder.fetch(name or location.bucket, wanted)
    try:
        yield snapshot.path / name if is_archive else snapshot.path
    finally:
        snapshot.release()


@contextmanager
def ended_by(stopped: threading.Event, opener: SourceOpener) -> Iterator[None]:
    """End the downloads of `opener` soon after `stopped` is set, with Interrupted."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_S):
            if stopped.is_set():
                opener.stop()
                return

    thread = threading.Thread(target=watch, name="download end", daemon=True)
    thread.start()
    try:
        yield
    except (RepositoryUnavailable, GivenUp):
        if stopped.is_set():
            raise Interrupted from None
        raise
    finally:
        done.set()
        thread.join()


_MODEL = "model"


class ModelArchives:
    """Archives of `storage`, by its keys, are unpacked below `models_root`. Any thread."""

    def __init__(self, storage: ArchiveStorage, models_root: Path, most_bytes: int) -> None:
        self._storage = storage
        self._models_root = models_root
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._puts = 0
        self._is_closed = False

    def close(self) -> None:
        """Unpack no more archives. Returns when the unpackings in progress have stopped."""
        with self._changed:
            self._is_closed = True
            self._storage.close()
            self._changed.wait_for(lambda: not self._puts)

    def put(self, key: str) -> str:
        """Unpack the archive of `key` and return the url of its folder. Raises ApiError. Blocks."""
        folder = self._models_root / name_of(key)
        with self._changed:
            if self._is_closed:
                raise endpoint_deleted()
            self._puts += 1
        try:
            with self._storage.archive(key) as archive:
                (folder / _MODEL).mkdir(parents=True)
                unpack(archive, folder / _MODEL, self._most_bytes, is_stopped=lambda: self._is_closed)
        except BaseException as error:
            self.remove(key)
            if isinstance(error, ConfigInvalid):
                raise validation_error(f"Failed to unpack model data: {error.message}") from None
            if isinstance(error, Interrupted):
                raise endpoint_deleted() from None
            raise
        finally:
            with self._changed:
                self._puts -= 1
                self._changed.notify_all()
        return self.url(key)

    def url(self, key: str) -> str:
        return str(self._models_root / name_of(key) / _MODEL)

    def remove(self, key: str) -> None:
        remove_folder(self._models_root / name_of(key))


def name_of(key: str) -> str:
    """The opaque name under which the container gets the model of `key`."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]
