"""Folders of any layout as sources: a repository, one model, or the files of one version.

Source: docs/spec/sagemaker.md section B2.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

from trident.core.config.platforms import PLATFORMS, is_hub_folder
from trident.core.errors import ConfigInvalid, ModelLoadFailed, RepositoryUnavailable
from trident.core.repository.config import read_config
from trident.core.repository.repository import (
    CONFIG_FILE,
    GOLDEN_REQUESTS,
    NAMED_CONFIGS,
    ModelDirectory,
    version_number,
)
from trident.core.repository.sources import Fetched, Source, SourceFile
from trident.core.repository.stores.object_store import name_problem

_log = logging.getLogger("trident.repository")
_VERSION = "1"
# These belong to the model, not to a version of it. So do label files, which are text.
_MODEL_ENTRIES = frozenset({CONFIG_FILE, NAMED_CONFIGS, GOLDEN_REQUESTS, "warmup", "initial_state"})
_LABELS = ".txt"


class SingleModelSource:
    """The Source of one model, called `name`, which is the folder `folder` of `inner`.

    With `bare` the folder holds the files of version 1 directly, beside the files of the whole model. The model is
    served as `name`, whatever its configuration says.
    """

    def __init__(self, inner: Source, folder: str, name: str, *, bare: bool = False) -> None:
        self.location = f"{inner.location}/{folder}"
        self._inner = inner
        self._folder = folder
        self._name = name
        self._bare = bare

    def models(self) -> Sequence[str]:
        return [self._name] if self._inner.files(self._folder) is not None else []

    def check_exists(self) -> None:
        self._inner.check_exists()

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        files = self.files(self._name)
        return {} if files is None else {self._name: files}

    def files(self, model: str) -> Sequence[SourceFile] | None:
        files = self._inner.files(self._folder) if model == self._name else None
        if files is None or not self._bare:
            return files
        placed = (
            file if _belongs_to_model(file.path) else replace(file, path=f"{_VERSION}/{file.path}") for file in files
        )
        return sorted(placed, key=lambda file: file.path)

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        if not self._bare:
            fetched = self._inner.fetch(self._folder, files, version)
            return Fetched(replace(fetched.directory, name=self._name, is_renamed=True), fetched.release)
        inner = [replace(file, path=file.path.removeprefix(f"{_VERSION}/")) for file in files]
        fetched = self._inner.fetch(self._folder, inner, None)
        try:
            around = _model_directory_around(fetched.directory.path.absolute(), inner)
        except OSError as error:
            fetched.release()
            raise RepositoryUnavailable(
                f"failed to make a model directory around {self.location}: {error}", model=model
            ) from error

        def release() -> None:
            shutil.rmtree(around, ignore_errors=True)
            fetched.release()

        return Fetched(ModelDirectory(self._name, around, is_renamed=True), release)


def _model_directory_around(directory: Path, files: Sequence[SourceFile]) -> Path:
    """Make a model directory whose version 1 is `directory`, which holds `files`. Raises OSError."""
    around = Path(tempfile.mkdtemp(prefix="trident-model-"))
    try:
        (around / _VERSION).symlink_to(directory, target_is_directory=True)
        for name in {file.path.partition("/")[0] for file in files if _belongs_to_model(file.path)}:
            # Copied, not linked: a file that a configuration names must lie within its model directory, links followed.
            if (directory / name).is_dir():
                shutil.copytree(directory / name, around / name, copy_function=_copy)
            else:
                _copy(directory / name, around / name)
    except OSError:
        shutil.rmtree(around, ignore_errors=True)
        raise
    return around


def _copy(source: str | Path, target: str | Path) -> None:
    if os.path.isfile(source):  # reading a pipe could take for ever
        shutil.copyfile(source, target)


def _belongs_to_model(path: str) -> bool:
    top, slash, _ = path.partition("/")
    return top in _MODEL_ENTRIES or (not slash and top.endswith(_LABELS))


#         repository   ROOT/MODEL/config.pbtxt, ROOT/MODEL/VERSION/model.onnx
#         model        ROOT/config.pbtxt, ROOT/VERSION/model.onnx       one model, without a repository around it
#         files        ROOT/model.onnx, perhaps ROOT/config.pbtxt       the same, without a version directory
#

MODEL_FILES = frozenset(row.filename for row in PLATFORMS)


class FolderShape(Enum):
    REPOSITORY = "repository"
    MODEL = "model"
    FILES = "files"


def folder_shape(paths: Collection[str]) -> FolderShape:
    """Return the shape of a folder with these files; a repository if in doubt, as Triton expects one.

    Triton refuses a folder with a config.pbtxt in it and treats every other folder as a repository.
    """
    tops = {path.partition("/")[0] for path in paths}
    versioned = any(_version_and_name(path) for path in paths)
    if CONFIG_FILE in paths:
        return FolderShape.FILES if tops & MODEL_FILES and not versioned else FolderShape.MODEL
    if is_hub_folder(tops):
        return FolderShape.MODEL
    if any(can_be_model(below) for below in _by_folder(paths).values()):
        return FolderShape.REPOSITORY
    if any(found[1] in MODEL_FILES for path in paths if (found := _version_and_name(path))):
        return FolderShape.MODEL
    return FolderShape.FILES if tops & MODEL_FILES else FolderShape.REPOSITORY


def can_be_model(paths: Iterable[str]) -> bool:
    """Return whether a folder with these files can be a model: it has a configuration, a version, or is the Hub's."""
    paths = list(paths)
    return is_hub_folder({path.partition("/")[0] for path in paths}) or any(
        path == CONFIG_FILE
        or (path.startswith(f"{NAMED_CONFIGS}/") and path.endswith(".pbtxt"))
        or _version_and_name(path) is not None
        for path in paths
    )


def _version_and_name(path: str) -> tuple[int, str] | None:
    """Return the version directory of `path`, and the name below it; None for a path outside version directories."""
    folder, slash, rest = path.partition("/")
    version = version_number(folder) if slash else None
    return None if version is None else (version, rest.partition("/")[0])


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, rest = path.partition("/")
        if slash:
            found.setdefault(folder, []).append(rest)
    return found


DEFAULT_NAME = "model"
_SHOWN = 10


class AnyLayoutSource:
    """The Source of the folder `folder` of `parent`, whatever its shape; `repository` is the same folder as a Source.

    The shape is decided once, when the folder is first found to contain something. A single model is called `name`;
    with an empty `name` it is called as its configuration says, or else `model`. With `required`, a scan that finds no
    model fails, because a platform passes on a folder only to have it served.
    """

    def __init__(
        self, parent: Source, folder: str, repository: Source, *, name: str = "", required: bool = False
    ) -> None:
        self.location = repository.location
        self._parent = parent
        self._folder = folder
        self._repository = repository
        self._name = name
        self._required = required
        self._lock = threading.Lock()
        self._decided: Source | None = None
        self._ignored: set[str] = set()

    def models(self) -> Sequence[str]:
        return self._source().models()

    def check_exists(self) -> None:
        self._repository.check_exists()

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        """Leaves out folders that cannot be models, such as `code` and `.git`: users upload whole projects.

        Each of those is logged once.
        """
        listed = self._source().scan()
        found = {name: files for name, files in listed.items() if can_be_model(file.path for file in files)}
        ignored = listed.keys() - found.keys()
        for name in sorted(ignored - self._ignored):
            _log.info("ignore folder '%s' in %s: it has neither a configuration nor a version", name, self.location)
        self._ignored = ignored
        if not found and self._required:
            self.check_exists()
            raise RepositoryUnavailable(
                f"there is no model in {self.location}: {self._content()}",
                hint="a model repository, the folder of one model, or a file model.onnx",
            )
        return found

    def files(self, model: str) -> Sequence[SourceFile] | None:
        return self._source().files(model)

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        return self._source().fetch(model, files, version)

    def _content(self) -> str:
        files = self._parent.files(self._folder) or ()
        names = sorted({file.path.partition("/")[0] for file in files})
        if not names:
            return "it is empty"
        return f"it holds {', '.join(map(repr, names[:_SHOWN]))}{' …' if names[_SHOWN:] else ''}"

    def _source(self) -> Source:
        with self._lock:
            if self._decided is not None:
                return self._decided
            files = self._parent.files(self._folder)
            if not files:
                return self._repository
            shape = folder_shape([file.path for file in files])
            if shape is FolderShape.REPOSITORY:
                self._decided = self._repository
            else:
                name = self._name or self._configured_name([file for file in files if file.path == CONFIG_FILE])
                _log.info("serving %s, one model without a repository around it, as '%s'", self.location, name)
                self._decided = SingleModelSource(self._parent, self._folder, name, bare=shape is FolderShape.FILES)
            return self._decided

    def _configured_name(self, configuration: Sequence[SourceFile]) -> str:
        """Return the name in the configuration. An unreadable one is ignored here: the load reports the error."""
        if not configuration:
            return DEFAULT_NAME
        try:
            fetched = self._parent.fetch(self._folder, configuration, None)
        except ModelLoadFailed:  # it is not as it was signed
            return DEFAULT_NAME
        try:
            name: str = read_config(fetched.directory).name
        except (ConfigInvalid, RepositoryUnavailable):
            return DEFAULT_NAME
        finally:
            fetched.release()
        return DEFAULT_NAME if name_problem(name) else name
