"""The layout of a model repository: `REPO/MODEL/config.pbtxt`, `REPO/MODEL/configs/NAME.pbtxt`, `REPO/MODEL/VERSION/`.

In addition to Triton's folders a model may have `golden/`, with requests and their expected responses.

Source: docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from trident.core.config.platforms import PLATFORMS, BackendPlatform, is_ensemble, is_hub_folder
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
    """Return the sub-directories of `path` that may be models. Raises what `model_names` raises."""
    return [ModelDirectory(name, path / name) for name in model_names(path) if not is_passed_over(name)]


def is_passed_over(name: str) -> bool:
    """Return whether a directory of this name belongs to another program, such as git or the file system.

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
        raise RepositoryUnavailable(
            "repository path is not a valid directory", hint=f"there is no directory {path}"
        ) from None
    except OSError as error:
        hint = chmod_hint(path) if isinstance(error, PermissionError) else None
        raise RepositoryUnavailable(f"failed to read repository {path}: {error.strerror}", hint=hint) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return False also for a link to itself, which must not hide the other entries, and True for a forbidden folder:
    its load reports the error.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        return isinstance(error, PermissionError)


def chmod_hint(path: Path | str) -> str:
    """Return the cure for a file or folder that this user may not read."""
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


# --- the content of a version

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
        """Return a digest of all files with their paths; None if they have changed since. Reads them once."""
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


# --- likely mistakes, as hints: what was found, what is expected, what to do

_MOST_NAMES = 5
_FILES = tuple(dict.fromkeys(row.filename for row in PLATFORMS))
_PICKLE = "export the model to ONNX, or load it in a model.py of the backend python"
_TREES = 'name the backend and the type of its file: backend: "fil" and parameters { key: "model_type" … }'
# The cure for files of other programs, by the end of their names.
EXPORTS = {
    ".joblib": _PICKLE,
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
    ".pth": "save the model as TorchScript in model.pt, or export it to ONNX",
    ".ckpt": "save the model as TorchScript in model.pt, or export it to ONNX",
    ".safetensors": "it holds only weights: export the model to ONNX, or save it as TorchScript in model.pt",
    ".h5": "export the model as a SavedModel, in the folder model.savedmodel",
    ".keras": "export the model as a SavedModel, in the folder model.savedmodel",
    ".tflite": "convert the model to ONNX, or take the SavedModel that it was made from",
    ".engine": "rename it to model.plan",
    ".json": _TREES,
    ".ubj": _TREES,
    ".txt": _TREES,
}


class _ModelFile(NamedTuple):
    """A file that may be the model, judged by its name."""

    name: str
    row: BackendPlatform


def layout_hint(directory: ModelDirectory, config: ModelConfig) -> str:
    """Return what a model's folder has, and what it should have; "" if that is unknown.

    For a model without a version, or of an unknown backend; `config` is as complete as possible.
    """
    try:
        folders = {name: directory.names_in(name) for name in directory.folders() if name not in RESERVED_FOLDERS}
        files = [entry.name for entry in os.scandir(directory.path) if entry.name not in folders]
    except OSError:
        return ""
    model = directory.name
    versions = [name for name in folders if version_number(name) is not None]
    if not versions and version_number(model) is not None and CONFIG_FILE not in files:
        return (
            "found the folder of one model, expected a folder of models: name the folder around it as the repository, "
            "or serve it with --single-model=NAME"
        )
    if config.platform and not config.backend:  # it does not exist
        return ""
    if versions:
        first = min(folders)
        if first not in versions and not config.backend:
            return (
                f"found the folder {model}/{first}, expected a version there, since the first folder tells the "
                f"backend: move it away, or write the backend into {model}/{CONFIG_FILE}"
            )
        version = min(versions)
        return _version_hint(f"{model}/{version}", folders[version], config, config.default_model_filename)
    if "config.json" in files and ("onnx" in folders or "model.onnx" in files):
        return (
            f"found {model}/config.json, as a text model of the Hub has it, without {model}/tokenizer.json: copy or "
            "write it (a tokenizer that is Python code is not executed)"
        )
    places = {name: f"{model}/{folder}/{name}" for folder, names in folders.items() for name in names}
    places |= {name: f"{model}/{name}" for name in (*files, *folders)}
    found = _best(places, _rows(config))
    shown = places[found.name] if found else f"{_listed({*files, *folders} - {CONFIG_FILE})} in {model}"
    wanted = config.default_model_filename or (found.row.filename if found else "model.onnx")
    return f"found {shown}, expected {model}/1/{wanted}: make the folder {model}/1 for the files of version 1"


def missing_file_hint(version: Path, config: ModelConfig, wanted: str) -> str | None:
    """Return the hint for a version folder in which the backend did not find the file or folder `wanted`."""
    try:
        names = os.listdir(version)
    except OSError:
        return None
    return _version_hint(f"{config.name}/{version.name}", names, config, wanted)


def no_models_hint(location: str) -> str:
    """Return the hint for a repository without model folders. Only a local one is examined."""
    step = "make a folder for each model, with a folder for each version"
    try:
        names = [name for name in os.listdir(location) if not name.startswith(".")]
    except OSError:
        return f"expected MODEL/1/model.onnx: {step}"
    if CONFIG_FILE in names or _best(names, PLATFORMS) is not None:
        step += ", or serve it with --single-model=NAME"
    return f"found {_listed(names)}, expected MODEL/1/model.onnx: {step}"


def _rows(config: ModelConfig) -> list[BackendPlatform]:
    return [row for row in PLATFORMS if config.backend in ("", row.backend)]


def _version_hint(place: str, names: Collection[str], config: ModelConfig, wanted: str) -> str:
    rows = _rows(config)
    expected = f"expected {place}/{wanted}" if wanted else f"expected one of {', '.join(_FILES)}"
    found = _best(names, rows) or (_best(names, PLATFORMS) if config.backend else None)
    if found is None and config.backend and len(names) == 1:  # whatever it is called, it must be meant
        found = _ModelFile(min(names), (rows or PLATFORMS)[0])
    if found is None:
        export = next((EXPORTS[_ending(name)] for name in sorted(names) if _ending(name) in EXPORTS), "")
        return f"found {_listed(names)} in {place}, {expected}" + (
            f": {export}" if export and not config.backend else ""
        )
    if found.row not in rows and rows:
        return f'found {place}/{found.name}, {expected}: write backend: "{found.row.backend}" for it, or replace it'
    backend = "" if config.backend else f'backend: "{found.row.backend}" and '
    return (
        f"found {place}/{found.name}, expected {place}/{wanted or found.row.filename}: rename it, or write "
        f'{backend}default_model_filename: "{found.name}" into {CONFIG_FILE}'
    )


def _best(names: Iterable[str], rows: Sequence[BackendPlatform]) -> _ModelFile | None:
    """Return the name most like one of the files of `rows`: equal, equal without regard to case, or with its ending."""
    for alike in (str, str.lower, _ending):
        for row in rows:
            for name in sorted(names):
                if alike(name) == alike(row.filename):
                    return _ModelFile(name, row)
    return None


def _ending(name: str) -> str:
    """Return the part of a file's name that says its format; for Python the whole name, as any module ends in .py."""
    ending = Path(name).suffix.lower()
    return name if ending == ".py" else ending


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:_MOST_NAMES]
    return ", ".join(shown) + (" …" if len(names) > _MOST_NAMES else "") if shown else "nothing"
