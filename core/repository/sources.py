"""The sources of models: repositories in local folders, and all repositories as one.

Other sources: cloud_sources.py (object stores), override_source.py (the files of a load request), layouts.py (one model
without a repository).
Source: docs/spec/repository.md section 1.3 (duplicate names, namespaces).
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.layout_hints import no_models_hint
from trident.core.repository.repository import (
    BYTECODE,
    ModelDirectory,
    is_passed_over,
    model_names,
    no_directory,
    version_of,
)

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a model. `path` is relative to the model directory, with `/`; `size` is in bytes.

    `tag` differs whenever the content differs: an etag, a generation, or the times and the inode of a local file.
    """

    path: str
    size: int
    tag: str


def size_of(files: Iterable[SourceFile], versions: Iterable[int]) -> int:
    wanted = set(versions)
    return sum(file.size for file in files if version_of(file.path) in wanted)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model on the local disk. It stays there, unchanged, until `release` is called; a second call does nothing."""

    directory: ModelDirectory
    release: Callable[[], None]


class Source(Protocol):
    """A model repository in one storage; any loader thread, several at once.

    Every method raises RepositoryUnavailable if the storage cannot be read or refuses access.
    """

    location: str

    def models(self) -> Sequence[str]:
        """Return the names of the model directories, sorted, without those of `is_passed_over`."""
        ...

    def check_exists(self) -> None:
        """Raise RepositoryUnavailable if the storage has nothing at `location`, not even an empty folder."""
        ...

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        """Return all `models` with their files sorted by path, from one listing of the whole repository."""
        ...

    def files(self, model: str) -> Sequence[SourceFile] | None:
        """Return all files of one model sorted by path; None if the repository has no such model."""
        ...

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        """Bring `model` to the local disk, as `files` (from `scan` or `files`) lists it.

        This includes everything outside the version directories and the directory of `version`; None stands for no
        version. Also raises RepositoryUnavailable if a file has changed since it was listed, is damaged or does not fit
        on the disk.
        """
        ...


_log = logging.getLogger("trident.repository")


class UsableNames:
    """Selects usable names from the listings of one repository; any thread.

    `problem` says why a name cannot be a folder's, or None. Each refused name is logged once, until it disappears.
    """

    def __init__(self, location: str, problem: Callable[[str], str | None]) -> None:
        self._location = location
        self._problem = problem
        self._lock = threading.Lock()
        self._refused: frozenset[str] = frozenset()

    def of(self, names: Iterable[str]) -> list[str]:
        listed = frozenset(names)
        problems = {name: problem for name in listed if (problem := self._problem(name))}
        passed_over = {name for name in listed - problems.keys() if is_passed_over(name)}
        with self._lock:
            known = self._refused
            self._refused = frozenset(problems) | passed_over
        for name in sorted(problems.keys() - known):
            _log.warning("ignore model %r in %s: %s", name, self._location, problems[name])
        new = sorted(passed_over - known)
        if new:
            shown = ", ".join(map(repr, new))
            _log.info("ignore %s in %s: models do not have such names", shown, self._location)
        return sorted(listed - problems.keys() - passed_over)


UNREADABLE = "unreadable:"
"""The beginning of the tag of a local file or folder that this user may not read."""


# A link may point to a whole file system, and every poll lists all files.
MOST_FILES = 100_000
DEEPEST = 100


class LocalSource:
    """The Source of a folder. It follows symbolic links, because mounted volumes consist of them.

    Its models are used in place: nothing is copied, and a file may be written while it is read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)
        self._names = UsableNames(self.location, lambda name: None if _is_utf8(name) else "its name is not UTF-8")
        # The models of which not all files are listed.
        self._too_large: set[str] = set()

    def models(self) -> Sequence[str]:
        """Skip folders whose names are not UTF-8, because no client could request them."""
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
        try:
            is_folder = stat.S_ISDIR(os.stat(root).st_mode)
        except OSError as error:
            is_folder = isinstance(error, PermissionError)
        if not is_folder:
            if not self.path.is_dir():
                raise no_directory(self.path)
            return None
        found: list[SourceFile] = []
        if not self._walk(root, "", found, set()) and model not in self._too_large:
            self._too_large.add(model)
            _log.warning(
                "model '%s' in %s has more than %d files, or folders in more than %d others: changes of all further "
                "ones are not seen. Does a link in it lead too far?",
                model,
                self.location,
                MOST_FILES,
                DEEPEST,
            )
        return sorted(found, key=lambda file: file.path)

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        return Fetched(ModelDirectory(model, self.path / model), lambda: None)

    def _walk(self, folder: str, prefix: str, found: list[SourceFile], seen: set[tuple[int, int]]) -> bool:
        """Add all files under `folder` to `found`. An empty folder counts as an empty file: it may be a version.

        False if there are too many, or if they are too deep; these are left out.

        Below one top folder of the model no folder is entered twice, so that a cycle of links ends. Two top folders
        that link to the same folder, such as versions that share it, each get its files.
        """
        if prefix.count("/") > DEEPEST:
            return False
        is_whole = True
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:  # a link that leads back into the tree
                return True
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                # A model in Python has it as soon as it has run: it must not look like another model.
                listed = [entry for entry in entries if entry.name != BYTECODE]
        except FileNotFoundError:  # removed after it was listed
            return True
        except OSError as error:  # it concerns only this model: loading it reports the error
            found.append(SourceFile(prefix, 0, f"{UNREADABLE} {error.strerror}"))
            return True
        if not listed and prefix:
            found.append(SourceFile(prefix, 0, "folder"))
        for entry in listed:
            if len(found) >= MOST_FILES:
                return False
            try:
                status = entry.stat()
                is_folder = entry.is_dir()
            except OSError as error:  # a dangling link, a loop of links, or removed after the folder was listed
                if isinstance(error, PermissionError):  # the folder can be read, and not be entered
                    found.append(SourceFile(f"{prefix}{entry.name}", 0, f"{UNREADABLE} {error.strerror}"))
                continue
            if is_folder:
                is_whole &= self._walk(entry.path, f"{prefix}{entry.name}/", found, seen if prefix else {*seen})
            else:
                tag = f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"
                if not os.access(entry.path, os.R_OK, effective_ids=True):
                    tag = f"{UNREADABLE} {tag}"
                found.append(SourceFile(f"{prefix}{entry.name}", status.st_size, tag))
        return is_whole


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


NOT_UNIQUE = "model appears in two or more repositories"


class ModelKey(NamedTuple):
    """Identifies a model. `namespace` is its repository's location with --model-namespacing, otherwise empty."""

    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Located:
    """A model in a repository, with its files as listed."""

    key: ModelKey
    source: Source
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """The content of all repositories: models by key, duplicate names, and the failures by repository."""

    models: Mapping[ModelKey, Located]
    duplicates: frozenset[str]
    failures: Mapping[str, RepositoryUnavailable] = field(default_factory=dict)


class Repositories:
    """The repositories of a server, in the order of the command line; any loader thread, several at once."""

    def __init__(self, sources: Iterable[Source], *, namespacing: bool = False) -> None:
        # A repository that is named twice counts once. Otherwise all its models would be duplicates.
        self._sources = list({source.location: source for source in sources}.values())
        self._namespacing = namespacing
        self._last_names: dict[str, Sequence[str]] = {}

    def check(self) -> None:
        """Raise RepositoryUnavailable if a repository cannot be read."""
        for source in self._sources:
            self._last_names[source.location] = source.models()

    def check_exist(self) -> None:
        """Raise RepositoryUnavailable for an empty repository whose location does not exist."""
        for source in self._sources:
            if not self._last_names.get(source.location):
                source.check_exists()

    def warn_of_empty(self) -> None:
        """Log a warning for each repository in which nothing was found, with what it holds instead."""
        for source in self._sources:
            if self._last_names.get(source.location):
                continue
            try:
                source.check_exists()
            except RepositoryUnavailable as error:
                _log.warning("%s%s", error.message, f": {error.hint}" if error.hint else "")
            else:
                _log.warning("there is no model in %s: %s", source.location, no_models_hint(source.location))

    def scan(self) -> Scan:
        """List each repository once. An unreadable one is among the failures and does not affect the others."""
        models: dict[ModelKey, Located] = {}
        duplicates: set[str] = set()
        failures: dict[str, RepositoryUnavailable] = {}
        for source in self._sources:
            try:
                found = source.scan()
            except RepositoryUnavailable as error:
                failures[source.location] = error
                continue
            self._last_names[source.location] = sorted(found)
            for name, files in sorted(found.items()):
                key = self._key(source, name)
                if key in models:
                    duplicates.add(name)
                models[key] = Located(key, source, tuple(files))
        return Scan(
            {key: m for key, m in models.items() if key.name not in duplicates}, frozenset(duplicates), failures
        )

    def find(self, name: str) -> list[Located]:
        """Return every repository's model `name`; several of them can be loaded only with namespacing.

        Raises RepositoryUnavailable if a repository cannot be read, because the model might be in it.
        """
        found = []
        for source in self._sources:
            files = source.files(name)
            if files is not None:
                found.append(Located(self._key(source, name), source, tuple(files)))
        return found

    def names(self) -> dict[ModelKey, str]:
        """Return every model directory with NOT_UNIQUE or ""; for an unreadable repository the last known ones."""
        names: dict[ModelKey, str] = {}
        for source in self._sources:
            try:
                self._last_names[source.location] = source.models()
            except RepositoryUnavailable as error:
                _log.warning("failed to list repository %s: %s", source.location, error.message)
            for name in self._last_names.get(source.location, ()):
                key = self._key(source, name)
                names[key] = NOT_UNIQUE if key in names else ""
        return names

    def _key(self, source: Source, name: str) -> ModelKey:
        return ModelKey(name, source.location if self._namespacing else "")
