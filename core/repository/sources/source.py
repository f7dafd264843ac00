"""The protocol between the lifecycle and a model repository, whatever its storage.

    Source              the protocol
    ├── LocalSource        a local folder (local.py)
    ├── ObjectStoreSource  a prefix in an object store, through a cache on the disk (object_store.py)
    ├── OverrideSource     the files of a load request (override.py)
    ├── SingleModelSource  one model from another source, under another name or layout (single_model.py)
    └── AnyLayoutSource    a folder that is a repository or a single model (any_layout.py)

Methods may block on disk or network: call them from a loader thread, never from an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.repository.layout import ModelDirectory


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a model. `path` is relative to the model directory, with `/`; `size` is in bytes.

    `tag` differs whenever the content differs: an etag, a generation, or the times and the inode of a local file.
    """

    path: str
    size: int
    tag: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model on the local disk. It stays there, unchanged, until `release` is called; a second call does nothing.

    Large files from an object store may still be compared with its checksum. `verify` waits for that, and whoever
    answers from such files calls it before. It returns False if a file was damaged and has been replaced: what was made
    from the files has to be made again from another fetch. It raises RepositoryUnavailable as `fetch` does.
    """

    directory: ModelDirectory
    release: Callable[[], None]
    verify: Callable[[], bool] = lambda: True


class Source(Protocol):
    """A model repository in one storage; any loader thread, several at once.

    Every method raises RepositoryUnavailable if the storage cannot be read or refuses access.
    """

    location: str

    def models(self) -> Sequence[str]:
        """The names of the model directories, sorted. Leaves out those that `is_passed_over` names."""
        ...

    def check_exists(self) -> None:
        """Raise RepositoryUnavailable if the storage has nothing at `location`, not even an empty folder."""
        ...

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        """Every one of `models` with all its files sorted by path, from one listing of the whole repository."""
        ...

    def files(self, model: str) -> Sequence[SourceFile] | None:
        """All files of one model sorted by path; None if the repository has no such model."""
        ...

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        """Bring `model` to the local disk, as `files` (from `scan` or `files`) lists it.

        This includes everything outside the version directories and the directory of `version`; None stands for no
        version. Also raises RepositoryUnavailable if a file has changed since it was listed, is damaged or does not fit
        on the disk.
        """
        ...
