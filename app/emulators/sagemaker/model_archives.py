"""The models of a multi-model endpoint, unpacked from their archives where the container looks for them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.emulators.common.interrupted import Interrupted
from app.emulators.common.read_only_folder import remove_folder
from app.emulators.sagemaker.api_error import endpoint_deleted, validation_error
from app.emulators.sagemaker.archive_storage import ArchiveStorage
from app.emulators.sagemaker.tarball import unpack
from core.errors import ConfigInvalid

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
        with self._put():
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
