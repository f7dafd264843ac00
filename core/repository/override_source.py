"""The files of a load request as a source.

Source: docs/spec/repository.md sections 1.4 and 1.6.
"""

from __future__ import annotations

import errno
import itertools
import posixpath
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from trident.core.errors import InvalidRequest, RepositoryUnavailable
from trident.core.repository.repository import ModelDirectory
from trident.core.repository.sources import Fetched, SourceFile

_PREFIX = "file:"
# Not the model's name: the client chooses it, and it may not be a valid folder name.
_FOLDER = "model"
_FAULTS_OF_A_PATH = {errno.ENAMETOOLONG: "the name is too long"} | dict.fromkeys(
    (errno.ENOTDIR, errno.EISDIR, errno.EEXIST), "a file cannot also be a folder in another file's path"
)
_LONGEST_SHOWN = 200
# Files of another request are others, even with the same names and sizes.
_REQUESTS = itertools.count()
# Nested folders; they are made, listed and removed by recursion.
_DEEPEST = 32


class OverrideSource:
    """The Source of a load request's files. Its folder is removed after `close` and the release of all that it gave."""

    def __init__(self, model: str, contents: Mapping[str, bytes]) -> None:
        """`contents` is keyed by the path relative to the model directory.

        Raises InvalidRequest for a path that leads out of the directory or that no file can have.
        """
        for path in contents:
            normal = _relative(path)
            if normal == "." or normal.split("/")[0] == ".." or "\0" in path:
                raise InvalidRequest(
                    f"Invalid file parameter '{_PREFIX}{path}' with normalized path '{normal}' must stay within model "
                    "directory."
                )
            if normal.count("/") > _DEEPEST:
                raise _no_file(path, f"it has more than {_DEEPEST} nested folders")
        self.location = "the load request"
        self._model = model
        self._lock = threading.Lock()
        self._users = 1
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="trident-override-"))
        except OSError as error:
            raise _not_written(model, error) from error
        try:
            for path, content in contents.items():
                _write(self._folder / _FOLDER, path, content)
        except OSError as error:
            self.close()
            raise _not_written(model, error) from error
        except InvalidRequest:
            self.close()
            raise
        # Of two spellings of one path the later has been written.
        sizes = {_relative(path): len(content) for path, content in contents.items()}
        number = next(_REQUESTS)
        self._files = tuple(SourceFile(path, size, f"request-{number}") for path, size in sorted(sizes.items()))

    def models(self) -> Sequence[str]:
        return [self._model]

    def check_exists(self) -> None:
        """The files are in the load request."""

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        return {self._model: self._files}

    def files(self, model: str) -> Sequence[SourceFile] | None:
        return self._files if model == self._model else None

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        with self._lock:
            if not self._users:
                raise RepositoryUnavailable(f"the files of the load request for model '{model}' are gone")
            self._users += 1
        once = iter((self.close,))
        return Fetched(ModelDirectory(model, self._folder / _FOLDER), lambda: next(once, lambda: None)())

    def close(self) -> None:
        """Release one use of the folder; the last release removes it."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            shutil.rmtree(self._folder, ignore_errors=True)


def _relative(path: str) -> str:
    """Return the path below the model directory; a slash at its beginning is ignored, as Triton joins it."""
    return posixpath.normpath(path.lstrip("/"))


def _write(folder: Path, path: str, content: bytes) -> None:
    """Raises InvalidRequest for a path that is impossible by itself or beside the other files; OSError."""
    file = folder / _relative(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except OSError as error:
        if error.errno not in _FAULTS_OF_A_PATH:
            raise
        raise _no_file(path, _FAULTS_OF_A_PATH[error.errno]) from error


def _no_file(path: str, why: str) -> InvalidRequest:
    shown = path if len(path) <= _LONGEST_SHOWN else f"{path[:_LONGEST_SHOWN]}..."
    return InvalidRequest(
        f"Invalid file parameter '{_PREFIX}{shown}': {why}", hint="name a file that the model directory can have"
    )


def _not_written(model: str, error: OSError) -> RepositoryUnavailable:
    return RepositoryUnavailable(
        f"failed to write the files of the load request for model '{model}': {error.strerror}", model=model
    )
