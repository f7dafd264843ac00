"""A model repository in a local folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import RepositoryUnavailable
from core.repository.layout import BYTECODE, ModelDirectory, model_names
from core.repository.sources.source import Fetched, SourceFile
from core.repository.sources.usable_names import UsableNames


class LocalSource:
    """The Source of a folder. It follows symbolic links, because mounted volumes consist of them.

    Its models are used in place: nothing is copied, and nothing protects a file from being written while it is read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)
        self._names = UsableNames(self.location, lambda name: None if _is_utf8(name) else "its name is not UTF-8")

    def models(self) -> Sequence[str]:
        """Leaves out folders whose names are not UTF-8, because no client could ask for them."""
        return self._names.of(model_names(self.path))

    def check_exists(self) -> None:
        model_names(self.path)

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        found = {model: self.files(model) for model in self.models()}
        return {model: files for model, files in found.items() if files is not None}

    def files(self, model: str) -> Sequence[SourceFile] | None:
        if not model or model in (os.curdir, os.pardir) or os.sep in model or "\0" in model or not _is_utf8(model):
            return None
        root = os.path.join(self.path, model)
        if not os.path.isdir(root):
            if not self.path.is_dir():
                raise RepositoryUnavailable(
                    "repository path is not a valid directory", hint=f"there is no directory {self.path}"
                )
            return None
        found: list[SourceFile] = []
        self._walk(root, "", found, set())
        return sorted(found, key=lambda file: file.path)

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        return Fetched(ModelDirectory(model, self.path / model), _release_nothing)

    def _walk(self, folder: str, prefix: str, found: list[SourceFile], seen: set[tuple[int, int]]) -> None:
        """Add all files under `folder` to `found`. An empty folder counts as an empty file: it may be a version.

        Below one top folder of the model no folder is entered twice, so that a cycle of links ends. Two top folders
        that link to the same folder, such as versions that share it, each get its files.
        """
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:  # a link that leads back into the tree
                return
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                # A model in Python has it as soon as it has run: it must not look like another model.
                listed = [entry for entry in entries if entry.name != BYTECODE]
        except FileNotFoundError:  # removed after it was listed
            return
        except OSError as error:  # it concerns only this model: loading it reports the error
            found.append(SourceFile(prefix, 0, f"unreadable: {error.strerror}"))
            return
        if not listed and prefix:
            found.append(SourceFile(prefix, 0, "folder"))
        for entry in listed:
            try:
                status = entry.stat()
                is_folder = entry.is_dir()
            except OSError:  # a dangling link, a loop of links, or removed after the folder was listed
                continue
            if is_folder:
                self._walk(entry.path, f"{prefix}{entry.name}/", found, seen if prefix else {*seen})
            else:
                tag = f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"
                found.append(SourceFile(f"{prefix}{entry.name}", status.st_size, tag))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _release_nothing() -> None:
    """The files belong to the user."""
