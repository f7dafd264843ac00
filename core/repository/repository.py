"""The layout of a model repository: `REPO/MODEL/config.pbtxt`, `REPO/MODEL/configs/NAME.pbtxt`, `REPO/MODEL/VERSION/`.

In addition to Triton's folders a model may have `golden/`, with requests and their expected responses.

Source: docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from trident.core.config.platforms import is_ensemble, is_hub_folder
from trident.core.config.problem import path_inside
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, ModelLoadFailed, RepositoryUnavailable, Unsupported

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
    """The names in the first sub-directory of the model, whatever its name; they identify the backend.

    A folder of the Hugging Face Hub is a version itself, so that the names in it do.
    """
    if hub_files := _hub_files(directory):
        return hub_files
    folders = directory.folders()
    return directory.names_in(folders[0]) if folders else frozenset()


def _hub_files(directory: ModelDirectory) -> frozenset[str]:
    """The names in a model's directory that is a folder of the Hub and has no versions; else none. Raises OSError."""
    if not any((directory.path / name).is_file() for name in ("tokenizer.json", "genai_config.json")):
        return frozenset()
    folders = directory.folders()
    names = frozenset((*os.listdir(directory.path), *folders))
    return (
        frozenset() if any(version_number(name) is not None for name in folders) or not is_hub_folder(names) else names
    )


# Source: docs/spec/repository.md section 1.12.


def read_labels(directory: ModelDirectory, config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The labels of each output that names a label file, by output; a label's line number is its class index.

    Raises Unsupported for a file outside the model directory, ModelLoadFailed for an unreadable file.
    """
    return {
        entry.name: _read(directory, entry.name, entry.label_filename)
        for entry in config.output
        if entry.label_filename
    }


def _read(directory: ModelDirectory, output: str, file_name: str) -> tuple[str, ...]:
    path = path_inside(directory.path, file_name)
    if path is None:
        raise Unsupported(
            f"label file path '{file_name}' for output '{output}' in model '{directory.name}' is outside model "
            "directory",
            model=directory.name,
        )
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise ModelLoadFailed(
            f"failed to open text file for read {path}: {error.strerror}", model=directory.name
        ) from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return tuple(line.rstrip("\r") for line in lines)


# Source: docs/spec/repository.md section 1.2.


_log = logging.getLogger("trident.repository")
RESERVED_FOLDERS = frozenset({"warmup", "initial_state", NAMED_CONFIGS, GOLDEN_REQUESTS})
_NUMBER = re.compile(r"[0-9]+", re.ASCII)
_LARGEST = 2**63 - 1
_VERSION_OF_HUB_FOLDER = 1


def version_directories(directory: ModelDirectory) -> list[int]:
    """The versions present, ascending; `0` is allowed. A directory with any other name is logged and skipped.

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
    """The versions that a policy may select. An ensemble without a version folder has version 1.

    Triton refuses it. But git and most object stores keep no empty folder, and an ensemble has nothing to put into one.
    """
    return version_directories(directory) or ([1] if is_ensemble(config) else [])


def version_number(name: str) -> int | None:
    """The version that a directory with this name holds; None if the name is not a version."""
    if not _NUMBER.fullmatch(name) or (len(name) > 1 and name.startswith("0")) or int(name[:20]) > _LARGEST:
        return None
    return int(name)


def version_of(path: str) -> int | None:
    """The version that the file at `path`, relative to the model directory, belongs to; None for all versions."""
    folder, slash, _ = path.partition("/")
    return version_number(folder) if slash else None


def version_path(directory: ModelDirectory, version: int) -> Path:
    return directory.path if _hub_files(directory) else directory.path / str(version)


def select_versions(config: ModelConfig, available: Sequence[int], model_name: str, layout_hint: str = "") -> list[int]:
    """The versions that the policy of `config` selects from `available`, ascending; ConfigInvalid if there is none.

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


_AT_ONCE = 1 << 20
# The configuration counts as it is in force, and golden requests change no answer.
_LEFT_OUT = frozenset({CONFIG_FILE, NAMED_CONFIGS, GOLDEN_REQUESTS})

# The path of a file below the model directory, and the state by which a change of it is seen.
_State = tuple[str, tuple[int, int, int]]


class ContentDigest:
    """The files of `version` and those that all versions share, as they are when this is made: before the load.

    Any thread.
    """

    def __init__(self, directory: ModelDirectory, version: int) -> None:
        """Looks at each file, and reads none."""
        self._path = directory.path
        self._version = version
        try:
            self._before: list[_State] | None = self._states()
        except OSError:
            self._before = None
        self._lock = threading.Lock()
        self._digest: bytes | None = None

    def digest(self) -> bytes | None:
        """A digest of all files with their paths; None if they are no longer what was loaded. Reads them once."""
        with self._lock:
            if self._digest is None and self._before is not None:
                try:
                    made = self._read(self._before)
                    self._digest = made if self._states() == self._before else None
                except OSError:
                    return None
            return self._digest

    def _read(self, files: list[_State]) -> bytes:
        whole = blake2b()
        for name, (size, _, _) in files:
            whole.update(repr((name, size)).encode("utf-8", "surrogateescape"))
            with open(self._path / name, "rb", buffering=0) as file:
                while chunk := file.read(_AT_ONCE):
                    whole.update(chunk)
        return whole.digest()

    def _states(self) -> list[_State]:
        return sorted(self._walk(self._path, frozenset()))

    def _walk(self, folder: Path, above: frozenset[str]) -> Iterator[_State]:
        real = os.path.realpath(folder)
        if real in above:  # a link to a folder that it is in
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                name = os.path.relpath(entry.path, self._path)
                if name in _LEFT_OUT or version_number(name) not in (None, self._version):
                    continue
                if entry.is_dir():
                    if entry.name != BYTECODE:
                        yield from self._walk(Path(entry.path), above | {real})
                elif entry.is_file():
                    found = entry.stat()
                    yield name, (found.st_size, found.st_mtime_ns, found.st_ino)
