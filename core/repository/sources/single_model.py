"""One model that does not lie as a repository has it: under another name, or without a version directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from core.errors import RepositoryUnavailable
from core.repository.layout import CONFIG_FILE, GOLDEN_REQUESTS, NAMED_CONFIGS, ModelDirectory
from core.repository.sources.source import Fetched, Source, SourceFile

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
        return sorted(map(_versioned, files), key=lambda file: file.path)

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        if not self._bare:
            fetched = self._inner.fetch(self._folder, files, version)
            return Fetched(
                replace(fetched.directory, name=self._name, is_renamed=True), fetched.release, fetched.verify
            )
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

        return Fetched(ModelDirectory(self._name, around, is_renamed=True), release, fetched.verify)


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


def _versioned(file: SourceFile) -> SourceFile:
    return file if _belongs_to_model(file.path) else replace(file, path=f"{_VERSION}/{file.path}")


def _belongs_to_model(path: str) -> bool:
    top, slash, _ = path.partition("/")
    return top in _MODEL_ENTRIES or (not slash and top.endswith(_LABELS))
