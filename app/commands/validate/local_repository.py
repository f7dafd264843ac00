"""The models of a repository in a local folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.repository.layout import ModelDirectory


class LocalRepository:
    """Raises RepositoryUnavailable if `path` is not a readable directory."""

    def __init__(self, path: str) -> None:
        from core.repository.layout import scan_repository

        self._directories = {directory.name: directory for directory in scan_repository(Path(path))}

    def models(self) -> Sequence[str]:
        return list(self._directories)

    def directory(self, model: str) -> AbstractContextManager[ModelDirectory]:
        return nullcontext(self._directories[model])
