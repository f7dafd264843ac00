"""The layout of a model repository: `REPO/MODEL/config.pbtxt`, `REPO/MODEL/configs/NAME.pbtxt`, `REPO/MODEL/VERSION/`.

In addition to Triton's folders a model may have `golden/`, with requests and their expected responses.

Source: docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trident.core.config.platforms import is_ensemble, is_hub_folder
from trident.core.config.problem import path_inside, read_file
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, ModelLoadFailed, RepositoryUnavailable, Unsupported

CONFIG_FILE = "config.pbtxt"
NAMED_CONFIGS = "configs"
GOLDEN_REQUESTS = "golden"
BYTECODE = "__pycache__"
"""The folder of compiled Python code, beside the code of a model."""

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
        """Return the names of the sub-directories, sorted; empty if the directory does not exist. Raises OSError."""
        if self.listed is not None:
            return sorted(self.listed)
        if not self.path.is_dir():
            return []
        return sorted(entry.name for entry in self.path.iterdir() if entry.is_dir())

    def names_in(self, folder: str) -> frozenset[str]:
        """Return the names in one of `folders`. Raises OSError."""
        if self.listed is not None:
            return self.listed[folder]
        return frozenset(entry.name for entry in (self.path / folder).iterdir())


def scan_repository(path: Path) -> list[ModelDirectory]:
    return [ModelDirectory(name, path / name) for name in model_names(path) if not is_passed_over(name)]


def is_passed_over(name: str) -> bool:
    """Return True if a directory of this name belongs to another program, such as git or the file system.

    Triton takes it for a model. A model of such a name is loaded only if it is named, never as one of all models.
    """
    return name.startswith(".") or name in _OF_OTHER_PROGRAMS


def model_names(path: Path) -> list[str]:
    """Return the names of all sub-directories of `path`, including dot-directories; plain files are ignored.

    Raises RepositoryUnavailable if `path` is not a readable directory.
    """
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if _is_folder(entry))
    except (FileNotFoundError, NotADirectoryError):
        raise no_directory(path) from None
    except OSError as error:
        hint = chmod_hint(path) if isinstance(error, PermissionError) else None
        raise RepositoryUnavailable(f"failed to read repository {path}: {error.strerror}", hint=hint) from error


def no_directory(path: Path) -> RepositoryUnavailable:
    is_file = path.is_file()
    hint = f"{path} is a file: `trident import` makes a model of it" if is_file else f"there is no directory {path}"
    return RepositoryUnavailable("repository path is not a valid directory", hint=hint)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return False also for a link to itself, which must not hide the other entries, and True for a forbidden folder:
    its load reports the error.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        return isinstance(error, PermissionError)


def chmod_hint(path: Path | str) -> str:
    return f"user {os.geteuid()} may not read it: chmod -R a+rX {path}"


def config_path(directory: ModelDirectory, config_name: str = "") -> Path | None:
    """Return the path of a model's configuration: `configs/CONFIG_NAME.pbtxt`, else `config.pbtxt`, else None.

    A dangling link or a directory counts as present, so that the model is not served without its configuration.
    """
    candidates = [directory.path / CONFIG_FILE]
    if config_name:
        candidates.insert(0, directory.path / NAMED_CONFIGS / f"{config_name}.pbtxt")
    return next((path for path in candidates if os.path.lexists(path)), None)


def detection_files(directory: ModelDirectory) -> frozenset[str]:
    """Return the names in the model's first sub-directory, whatever its name, which identify the backend.

    For a folder of the Hugging Face Hub, which is a version itself, these are the names in it.
    """
    if hub_files := _hub_files(directory):
        return hub_files
    folders = directory.folders()
    return directory.names_in(folders[0]) if folders else frozenset()


def _hub_files(directory: ModelDirectory) -> frozenset[str]:
    """Return the names in a model's directory if it is a folder of the Hub without versions. Raises OSError."""
    if not any(os.path.isfile(directory.path / name) for name in ("tokenizer.json", "genai_config.json")):
        return frozenset()
    folders = directory.folders()
    names = frozenset((*os.listdir(directory.path), *folders))
    has_versions = any(version_number(name) is not None for name in folders)
    return names if is_hub_folder(names) and not has_versions else frozenset()


# --- labels


def read_labels(directory: ModelDirectory, config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Read the labels of each output that names a label file, by output; a label's line number is its class index.

    Raises Unsupported for a file outside the model directory, ModelLoadFailed for an unreadable file.
    """
    return {
        entry.name: _read(directory, entry.name, entry.label_filename)
        for entry in config.output
        if entry.label_filename
    }


_MOST_LABELS = 64 << 20


def _read(directory: ModelDirectory, output: str, file_name: str) -> tuple[str, ...]:
    path = path_inside(directory.path, file_name)
    if path is None:
        raise Unsupported(
            f"label file path '{file_name}' for output '{output}' in model '{directory.name}' is outside model "
            "directory",
            model=directory.name,
        )
    try:
        text = read_file(path, _MOST_LABELS).decode("utf-8", errors="replace")
    except OSError as error:
        raise ModelLoadFailed(
            f"failed to open text file for read {path}: {error.strerror}",
            hint=chmod_hint(path) if isinstance(error, PermissionError) else None,
            model=directory.name,
        ) from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return tuple(line.rstrip("\r") for line in lines)


# --- versions

_log = logging.getLogger("trident.repository")
RESERVED_FOLDERS = frozenset({"warmup", "initial_state", NAMED_CONFIGS, GOLDEN_REQUESTS})
_NUMBER = re.compile(r"[0-9]+", re.ASCII)
_LARGEST = 2**63 - 1
_VERSION_OF_HUB_FOLDER = 1


def version_directories(directory: ModelDirectory) -> list[int]:
    """Return the versions present, ascending; `0` is allowed. A directory with any other name is logged and skipped.

    Triton reads `3_old` as version 3 and then fails because it finds no directory `3`; here `3_old` is skipped.
    """
    versions: list[int] = []
    if _hub_files(directory):
        return [_VERSION_OF_HUB_FOLDER]
    for name in directory.folders():
        if name in RESERVED_FOLDERS:
            continue
        if len(name) > 1 and name.startswith("0"):
            _log.warning("ignore version directory '%s' which contains leading zeros in its directory name", name)
        elif version_number(name) is None:
            _log.warning("ignore version directory '%s' which fails to convert to integral number", name)
        else:
            versions.append(int(name))
    return sorted(versions)


def available_versions(config: ModelConfig, directory: ModelDirectory) -> list[int]:
    """Return the versions that a policy may select. An ensemble without a version folder has version 1.

    Triton refuses it, but git and most object stores cannot store the empty folder that an ensemble would need.
    """
    return version_directories(directory) or ([1] if is_ensemble(config) else [])


def version_number(name: str) -> int | None:
    """Return the version of a directory with this name; None if the name is not a version."""
    if not _NUMBER.fullmatch(name) or (len(name) > 1 and name.startswith("0")) or int(name[:20]) > _LARGEST:
        return None
    return int(name)


def version_of(path: str) -> int | None:
    """Return the version of the file at `path`, relative to the model directory; None if it belongs to all."""
    folder, slash, _ = path.partition("/")
    return version_number(folder) if slash else None


def version_path(directory: ModelDirectory, version: int) -> Path:
    return directory.path if _hub_files(directory) else directory.path / str(version)


def select_versions(config: ModelConfig, available: Sequence[int], model_name: str, layout_hint: str = "") -> list[int]:
    """Return the versions that the policy of `config` selects from `available`, ascending. Raises ConfigInvalid.

    `layout_hint` is for a model that has no version at all.
    """
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    selected = sorted(available)
    if choice == "specific":
        for version in policy.specific.versions:
            if version not in available:
                _log.warning(
                    "version %d is specified for model '%s', but the version directory is not present",
                    version,
                    model_name,
                )
        selected = [version for version in selected if version in policy.specific.versions]
    elif choice == "latest" or not config.HasField("version_policy"):  # the default policy is the latest version
        selected = selected[-max(1, policy.latest.num_versions) :]
    if not selected:
        raise ConfigInvalid(
            f"at least one version must be available under the version policy of model '{model_name}'",
            hint=f"found the versions {', '.join(map(str, available))}: change version_policy, or add a version"
            if available
            else layout_hint,
            model=model_name,
        )
    return selected
