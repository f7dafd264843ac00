"""The layout of a model repository: `REPO/MODEL/config.pbtxt`, `REPO/MODEL/configs/NAME.pbtxt`, `REPO/MODEL/VERSION/`.

In addition to Triton's folders a model may have `golden/`, with requests and their expected responses.

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
BYTECODE = "__pycache__"
"""The folder into which Python writes what it has compiled, beside the code of a model that runs."""

_OF_OTHER_PROGRAMS = frozenset({"lost+found", BYTECODE})


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A sub-directory of a repository, which may be a model. `path` is on the local disk.

    `listed` has all its sub-directories with the names in each, if some of them are not on the disk; None if all are.
    With `is_renamed` the model is called `name`, whatever its configuration says.
    """

    name: str
    path: Path
    listed: Mapping[str, frozenset[str]] | None = None
    is_renamed: bool = False

    def folders(self) -> list[str]:
        """The names of the sub-directories, sorted; empty if the directory does not exist. Raises OSError."""
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
    """The sub-directories of `path` that may be models. Raises what `model_names` raises."""
    return [ModelDirectory(name, path / name) for name in model_names(path) if not is_passed_over(name)]


def is_passed_over(name: str) -> bool:
    """Whether a directory of this name in a repository belongs to another program, such as git or the file system.

    Triton takes it for a model. A model of such a name is loaded only if it is named, never as one of all models.
    """
    return name.startswith(".") or name in _OF_OTHER_PROGRAMS


def model_names(path: Path) -> list[str]:
    """The names of all sub-directories of `path`, including dot-directories; plain files are ignored.

    Raises RepositoryUnavailable if `path` is not a readable directory.
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
    """False also for a link to itself or to a forbidden place, so that it does not hide the other entries."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def config_path(directory: ModelDirectory, config_name: str = "") -> Path | None:
    """The path of a model's configuration: `configs/CONFIG_NAME.pbtxt` if present, else `config.pbtxt`, else None.

    A dangling link or a directory counts as present: serving the model without it would not be what its author meant.
    """
    candidates = [directory.path / CONFIG_FILE]
    if config_name:
        candidates.insert(0, directory.path / NAMED_CONFIGS / f"{config_name}.pbtxt")
    return next((path for path in candidates if os.path.lexists(path)), None)


def detection_files(directory: ModelDirectory) -> frozenset[str]:
    """The names in the first sub-directory of the model, whatever its name; they identify the backend."""
    folders = directory.folders()
    return directory.names_in(folders[0]) if folders else frozenset()
