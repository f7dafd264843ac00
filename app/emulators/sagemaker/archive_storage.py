"""Where the archives of a multi-model endpoint are: in a local folder, which stands for the prefix, or in the cloud.

ArchiveStorage   the protocol
├── LocalArchives   the files below a folder
└── CloudArchives   the objects below a prefix, fetched when they are needed
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from app.emulators.sagemaker.api_error import ApiError, endpoint_deleted, validation_error
from app.emulators.sagemaker.cloud_model import ARCHIVE, ended_by
from core.errors import ConfigInvalid, ServerError
from core.observability.log_text import escaped
from core.repository.download.backoff import GivenUp
from core.repository.sources.opener import SourceOpener
from core.repository.stores.object_names import path_problem


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
        yield self._find(key)

    def close(self) -> None: ...

    def _find(self, key: str) -> Path:
        parts = key.split("/")
        path = self._folder.joinpath(*parts)
        is_key = not ({"", os.curdir, os.pardir} & set(parts)) and "\0" not in key
        try:
            if is_key and path.resolve().is_relative_to(self._folder) and path.is_file():
                return path
        except (OSError, RuntimeError):  # a name that is too long, a loop of links
            pass
        raise _missing(key, "the folder of this endpoint")


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
            stored = None if path_problem(key) else self._folder.objects(key, self._closed).get(key)
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
