"""The layout of a model repository: `REPO/MODEL/config.pbtxt`, `REPO/MODEL/configs/NAME.pbtxt`, `REPO/MODEL/VERSION/`.

Beside Triton's folders a model may have `golden/`, with requests and the responses that they must get.

Source: docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import RepositoryUnavailable

CONFIG_FILE = "config.pbtxt"
NAMED_CONFIGS = "configs"
GOLDEN_REQUESTS = "golden"


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """One candidate model: a sub-directory of a repository. `path` is on the local disk.

    `listed` are all its sub-directories with the names in each, where not all of them are on the disk; None where
    they are. With `is_renamed` the model is called `name` whatever its configuration says.
    """

    name: str
    path: Path
    listed: Mapping[str, frozenset[str]] | None = None
    is_renamed: bool = False

    def folders(self) -> list[str]:
        """The names of the sub-directories, sorted; none where there is no such directory. Raises OSError."""
        if self.listed is not None:
            return sorted(self.listed)
        if not self.path.is_dir():
            return []
        return sorted(entry.name for entry in self.path.iterdir() if entry.is_dir())

    def names_in(self, folder: str) -> frozenset[str]:
        """The names in one of `folders`. Raises OSError."""
        if self.listed is not None:
            return self.listed[folder]
        return frozenset(entry.name for entry in (self.path / folder).iterdir())


def scan_repository(path: Path) -> list[ModelDirectory]:
    """The sub-directories of `path`, as `model_names` finds and fails to find them."""
    return [ModelDirectory(name, path / name) for name in model_names(path)]


def model_names(path: Path) -> list[str]:
    """Every sub-directory of `path` by name, dot-directories too; plain files are ignored.

    Raises RepositoryUnavailable where `path` is no directory or cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if _is_folder(entry))
    except (FileNotFoundError, NotADirectoryError):
        raise RepositoryUnavailable(
            "repository path is not a valid directory", hint=f"there is no directory {path}"
        ) from None
    except OSError as error:
        raise RepositoryUnavailable(f"failed to read repository {path}: {error.strerror}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads to itself, or to where nobody may look, is none: it must not hide the others."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def config_path(directory: ModelDirectory, config_name: str = "") -> Path | None:
    """The configuration file of a model: `configs/CONFIG_NAME.pbtxt` if present, else `config.pbtxt`, else None.

    A link that leads nowhere and a directory are present: what was meant is not what would serve without them.
    """
    candidates = [directory.path / CONFIG_FILE]
    if config_name:
        candidates.insert(0, directory.path / NAMED_CONFIGS / f"{config_name}.pbtxt")
    return next((path for path in candidates if os.path.lexists(path)), None)


def detection_files(directory: ModelDirectory) -> frozenset[str]:
    """The names in the first sub-directory of the model, whatever it is called: they tell the backend apart."""
    folders = directory.folders()
    return directory.names_in(folders[0]) if folders else frozenset()
