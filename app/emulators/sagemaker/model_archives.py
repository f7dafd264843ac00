"""The archives of a multi-model endpoint: the files below one folder, which stands for the prefix in the storage."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.emulators.common.interrupted import Interrupted
from app.emulators.common.read_only_folder import remove_folder
from app.emulators.sagemaker.api_error import endpoint_deleted, validation_error
from app.emulators.sagemaker.tarball import unpack
from core.errors import ConfigInvalid
from core.observability.log_text import escaped

_MODEL = "model"


class ModelArchives:
    """Keys are paths below `folder`, with `/`; archives are unpacked below `models_root`. Any thread."""

    def __init__(self, folder: Path, models_root: Path, most_bytes: int) -> None:
        self._folder = folder.resolve()
        self._models_root = models_root
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._puts = 0
        self._is_closed = False

    def close(self) -> None:
        """Unpack no more archives. Returns when the unpackings in progress have stopped."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._puts)

    def find(self, key: str) -> Path:
        """The archive of `key`. Raises ApiError if there is none."""
        parts = key.split("/")
        path = self._folder.joinpath(*parts)
        is_key = not ({"", os.curdir, os.pardir} & set(parts)) and "\0" not in key
        try:
            if is_key and path.resolve().is_relative_to(self._folder) and path.is_file():
                return path
        except (OSError, RuntimeError):  # a name that is too long, a loop of links
            pass
        raise validation_error(
            f"Failed to download model data: there is no archive '{escaped(key)}' in the folder of this endpoint"
        )

    def put(self, key: str) -> str:
        """Unpack the archive of `key` and return the url of its folder. Raises ApiError. Blocks."""
        folder = self._models_root / name_of(key)
        with self._put():
            try:
                (folder / _MODEL).mkdir(parents=True)
                unpack(self.find(key), folder / _MODEL, self._most_bytes, is_stopped=lambda: self._is_closed)
            except BaseException as error:
                self.remove(key)
                if isinstance(error, ConfigInvalid):
                    raise validation_error(f"Failed to unpack model data: {error.message}") from None
                if isinstance(error, Interrupted):
                    raise endpoint_deleted() from None
                raise
        return self.url(key)

    def url(self, key: str) -> str:
        return str(self._models_root / name_of(key) / _MODEL)

    def remove(self, key: str) -> None:
        remove_folder(self._models_root / name_of(key))

    @contextmanager
    def _put(self) -> Iterator[None]:
        with self._changed:
            if self._is_closed:
                raise endpoint_deleted()
            self._puts += 1
        try:
            yield
        finally:
            with self._changed:
                self._puts -= 1
                self._changed.notify_all()


def name_of(key: str) -> str:
    """The opaque name under which the container gets the model of `key`."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]
