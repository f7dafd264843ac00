"""What every storage of a model repository can do; one module per storage implements it.

Methods may block on disk or network: call them from a loader thread, never from an event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from core.repository.layout import ModelDirectory


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a model. `path` is relative to the model directory, with `/`; `size` is in bytes."""

    path: str
    size: int
    modified_ns: int


class Source(Protocol):
    """A model repository in one storage. Every method raises RepositoryUnavailable where that cannot be read."""

    location: str

    def models(self) -> Sequence[str]:
        """The names of the model directories, sorted."""
        ...

    def files(self, model: str) -> Sequence[SourceFile]:
        """Every file of `model` by path, so that a change can be told; empty for a model that is not there."""
        ...

    def read(self, model: str, path: str) -> bytes:
        """The content of one file of `model`."""
        ...

    def local_directory(self, model: str) -> ModelDirectory:
        """The model as a directory on the local disk, fetched first where the storage is elsewhere."""
        ...
