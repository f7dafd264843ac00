"""What the lifecycle asks of a model repository, wherever it is stored.

    Source          the protocol
    ├── LocalSource    a folder (local.py)
    └── ObjectSource   a prefix in an object store, through a cache on the disk (object_store.py)

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

    `tag` is different whenever the content is: an etag, a generation, or the times and the inode of a local file.
    """

    path: str
    size: int
    tag: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model on the local disk. It stays there, unchanged, until `release` is called; a second call does nothing."""

    directory: ModelDirectory
    release: Callable[[], None]


class Source(Protocol):
    """A model repository in one storage; any loader thread, several at once.

    Every method raises RepositoryUnavailable where the storage cannot be read or refuses.
    """

    location: str

    def models(self) -> Sequence[str]:
        """The names of the model directories, sorted; one look at the storage."""
        ...

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        """Every model with all its files by path, from one listing of the whole repository."""
        ...

    def files(self, model: str) -> Sequence[SourceFile] | None:
        """All files of one model by path; None if the repository has no such model."""
        ...

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        """`model` on the local disk, as `files` (from `scan` or `files`) lists it: what all versions share, which is
        everything outside the version directories, and of these the one of `version`; none for None.

        Raises also where a file has changed since it was listed, is damaged, or does not fit on the disk.
        """
        ...
