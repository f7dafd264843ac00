"""One model that is not where a repository would have it: under another name, or without a version directory."""

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
# What belongs to the model, not to a version of it; label files are text.
_OF_THE_MODEL = frozenset({CONFIG_FILE, NAMED_CONFIGS, GOLDEN_REQUESTS, "warmup", "initial_state"})
_LABELS = ".txt"


class PlacedModel:
    """The Source of one model, `name`, which is the folder `folder` of `inner`.

    With `bare` the folder holds the model files themselves, which are version 1, beside what belongs to the whole
    model. The configuration's own name does not count: it is served under `name`.
    """

    def __init__(self, inner: Source, folder: str, name: str, *, bare: bool = False) -> None:
        self.location = f"{inner.location}/{folder}"
        self._inner = inner
        self._folder = folder
        self._name = name
        self._bare = bare

    def models(self) -> Sequence[str]:
        return [self._name] if self._inner.files(self._folder) is not None else []

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        files = self.files(self._name)
        return {} if files is None else {self._name: files}

    def files(self, model: str) -> Sequence[SourceFile] | None:
        files = self._inner.files(self._folder) if model == self._name else None
        if files is None or not self._bare:
            return files
        return sorted(map(_placed, files), key=lambda file: file.path)

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        if not self._bare:
            fetched = self._inner.fetch(self._folder, files, version)
            return Fetched(replace(fetched.directory, name=self._name, is_renamed=True), fetched.release)
        inner = [replace(file, path=file.path.removeprefix(f"{_VERSION}/")) for file in files]
        fetched = self._inner.fetch(self._folder, inner, None)
        try:
            around = _surrounded(fetched.directory.path.absolute(), inner)
        except OSError as error:
            fetched.release()
            raise RepositoryUnavailable(
                f"failed to make a model directory around {self.location}: {error}", model=model
            ) from error

        def release() -> None:
            shutil.rmtree(around, ignore_errors=True)
            fetched.release()

        return Fetched(ModelDirectory(self._name, around, is_renamed=True), release)


def _surrounded(directory: Path, files: Sequence[SourceFile]) -> Path:
    """A new model directory whose version 1 is `directory`, where `files` lie. Raises OSError."""
    around = Path(tempfile.mkdtemp(prefix="trident-model-"))
    try:
        (around / _VERSION).symlink_to(directory, target_is_directory=True)
        for name in {file.path.partition("/")[0] for file in files if _is_of_the_model(file.path)}:
            # Copied, not linked: what a configuration names must lie within its model directory, links followed.
            if (directory / name).is_dir():
                shutil.copytree(directory / name, around / name, copy_function=_copy)
            else:
                _copy(directory / name, around / name)
    except OSError:
        shutil.rmtree(around, ignore_errors=True)
        raise
    return around


def _copy(source: str | Path, target: str | Path) -> None:
    if os.path.isfile(source):  # to read a pipe could take for ever
        shutil.copyfile(source, target)


def _placed(file: SourceFile) -> SourceFile:
    return file if _is_of_the_model(file.path) else replace(file, path=f"{_VERSION}/{file.path}")


def _is_of_the_model(path: str) -> bool:
    top, slash, _ = path.partition("/")
    return top in _OF_THE_MODEL or (not slash and top.endswith(_LABELS))
