"""A model repository in a local folder."""

from __future__ import annotations

import os
from pathlib import Path

from core.errors import RepositoryUnavailable
from core.repository.layout import ModelDirectory, scan_repository
from core.repository.source import SourceFile


class LocalSource:
    """The Source of a folder; symbolic links are followed, since mounted volumes are made of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)

    def models(self) -> list[str]:
        return [directory.name for directory in scan_repository(self.path)]

    def files(self, model: str) -> list[SourceFile]:
        root = self.path / model
        found: list[SourceFile] = []
        seen: set[tuple[int, int]] = set()
        for folder, folders, names in os.walk(root, followlinks=True):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:  # a link that leads back into the tree
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.stat()
                except FileNotFoundError:  # a dangling link, or removed since the folder was listed
                    continue
                relative = path.relative_to(root).as_posix()
                found.append(SourceFile(relative, status.st_size, status.st_mtime_ns))
        return sorted(found, key=lambda file: file.path)

    def read(self, model: str, path: str) -> bytes:
        file = self.path / model / path
        try:
            return file.read_bytes()
        except OSError as error:
            raise RepositoryUnavailable(f"failed to read {file}: {error.strerror}", model=model) from error

    def local_directory(self, model: str) -> ModelDirectory:
        return ModelDirectory(model, self.path / model)
