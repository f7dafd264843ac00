"""The sources of models: repositories in local folders, the files of a load request, and all repositories as one.

Those in object stores are in cloud_sources.py.
Source: docs/spec/repository.md sections 1.3 (duplicate names, namespaces), 1.4 and 1.6 (files in a load request).
"""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from trident.core.config.platforms import PLATFORMS, is_hub_folder
from trident.core.errors import ConfigInvalid, InvalidRequest, RepositoryUnavailable
from trident.core.repository.config import read_config
from trident.core.repository.location import Scheme, parse_location
from trident.core.repository.progress import DownloadProgress
from trident.core.repository.repository import (
    BYTECODE,
    CONFIG_FILE,
    GOLDEN_REQUESTS,
    NAMED_CONFIGS,
    ModelDirectory,
    is_passed_over,
    model_names,
    no_models_hint,
    version_number,
)
from trident.core.repository.stores.object_store import name_problem

if TYPE_CHECKING:
    from trident.core.repository.cloud_sources import CloudOpener, ObjectFolder


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a model. `path` is relative to the model directory, with `/`; `size` is in bytes.

    `tag` differs whenever the content differs: an etag, a generation, or the times and the inode of a local file.
    """

    path: str
    size: int
    tag: str


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
        """Return the usable names, sorted."""
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


class LocalSource:
    """The Source of a folder. It follows symbolic links, because mounted volumes consist of them.

    Its models are used in place: nothing is copied, and a file may be written while it is read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)
        self._names = UsableNames(self.location, lambda name: None if _is_utf8(name) else "its name is not UTF-8")

    def models(self) -> Sequence[str]:
        """Leave out folders whose names are not UTF-8, because no client could ask for them."""
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
                raise RepositoryUnavailable(
                    "repository path is not a valid directory", hint=f"there is no directory {self.path}"
                )
            return None
        found: list[SourceFile] = []
        self._walk(root, "", found, set())
        return sorted(found, key=lambda file: file.path)

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        return Fetched(ModelDirectory(model, self.path / model), _nothing)

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
            found.append(SourceFile(prefix, 0, f"{UNREADABLE} {error.strerror}"))
            return
        if not listed and prefix:
            found.append(SourceFile(prefix, 0, "folder"))
        for entry in listed:
            try:
                status = entry.stat()
                is_folder = entry.is_dir()
            except OSError as error:  # a dangling link, a loop of links, or removed after the folder was listed
                if isinstance(error, PermissionError):  # the folder can be read, and not be entered
                    found.append(SourceFile(f"{prefix}{entry.name}", 0, f"{UNREADABLE} {error.strerror}"))
                continue
            if is_folder:
                self._walk(entry.path, f"{prefix}{entry.name}/", found, seen if prefix else {*seen})
            else:
                tag = f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"
                if not os.access(entry.path, os.R_OK, effective_ids=True):
                    tag = f"{UNREADABLE} {tag}"
                found.append(SourceFile(f"{prefix}{entry.name}", status.st_size, tag))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _nothing() -> None:
    """Release nothing: the files belong to the user, or were released before."""


_PREFIX = "file:"
# Not the model's name: the client chooses it, and it may not be a valid folder name.
_FOLDER = "model"
_FAULTS_OF_A_PATH = {errno.ENAMETOOLONG: "the name is too long"} | dict.fromkeys(
    (errno.ENOTDIR, errno.EISDIR, errno.EEXIST), "a file cannot also be a folder in another file's path"
)
_LONGEST_SHOWN = 200
# Nested folders; they are made, listed and removed by recursion.
_DEEPEST = 32


class OverrideSource:
    """The Source of a load request's files. Its folder is removed after `close` and the release of all that it gave."""

    def __init__(self, model: str, contents: Mapping[str, bytes]) -> None:
        """`contents` is keyed by the path relative to the model directory.

        Raises InvalidRequest for a path that leads out of the directory or that no file can have.
        """
        for path in contents:
            _check_path(path)
        self.location = "the load request"
        self._model = model
        self._lock = threading.Lock()
        self._users = 1
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="trident-override-"))
        except OSError as error:
            raise _not_written(model, error) from error
        try:
            for path, content in contents.items():
                _write(self._folder / _FOLDER, path, content)
        except OSError as error:
            self.close()
            raise _not_written(model, error) from error
        except InvalidRequest:
            self.close()
            raise
        # Of two spellings of one path the later has been written.
        sizes = {_relative(path): len(content) for path, content in contents.items()}
        self._files = tuple(SourceFile(path, size, f"request-{id(self)}") for path, size in sorted(sizes.items()))

    def models(self) -> Sequence[str]:
        return [self._model]

    def check_exists(self) -> None:
        """The files are in the load request."""

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        return {self._model: self._files}

    def files(self, model: str) -> Sequence[SourceFile] | None:
        return self._files if model == self._model else None

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        with self._lock:
            if not self._users:
                raise RepositoryUnavailable(f"the files of the load request for model '{model}' are gone")
            self._users += 1
        once = iter((self.close,))
        return Fetched(ModelDirectory(model, self._folder / _FOLDER), lambda: next(once, _nothing)())

    def close(self) -> None:
        """Release one use of the folder; the last release removes it."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            shutil.rmtree(self._folder, ignore_errors=True)


def _relative(path: str) -> str:
    """Return the path below the model directory; a slash at its beginning is ignored, as Triton joins it."""
    return posixpath.normpath(path.lstrip("/"))


def _check_path(path: str) -> None:
    normal = _relative(path)
    if normal == "." or normal.split("/")[0] == ".." or "\0" in path:
        raise InvalidRequest(
            f"Invalid file parameter '{_PREFIX}{path}' with normalized path '{normal}' must stay within model "
            "directory."
        )
    if normal.count("/") > _DEEPEST:
        raise _no_file(path, f"it has more than {_DEEPEST} nested folders")


def _write(folder: Path, path: str, content: bytes) -> None:
    """Raises InvalidRequest for a path that is impossible by itself or beside the other files; OSError."""
    file = folder / _relative(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except OSError as error:
        if error.errno not in _FAULTS_OF_A_PATH:
            raise
        raise _no_file(path, _FAULTS_OF_A_PATH[error.errno]) from error


def _no_file(path: str, why: str) -> InvalidRequest:
    shown = path if len(path) <= _LONGEST_SHOWN else f"{path[:_LONGEST_SHOWN]}..."
    return InvalidRequest(
        f"Invalid file parameter '{_PREFIX}{shown}': {why}", hint="name a file that the model directory can have"
    )


def _not_written(model: str, error: OSError) -> RepositoryUnavailable:
    return RepositoryUnavailable(
        f"failed to write the files of the load request for model '{model}': {error.strerror}", model=model
    )


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
# Source: docs/spec/sagemaker.md section B2.


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
    """Return the paths below each sub-folder."""
    found: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, rest = path.partition("/")
        if slash:
            found.setdefault(folder, []).append(rest)
    return found


# Source: docs/spec/sagemaker.md section B2.


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
        """Describe the content of the folder."""
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
        fetched = self._parent.fetch(self._folder, configuration, None)
        try:
            name: str = read_config(fetched.directory).name
        except (ConfigInvalid, RepositoryUnavailable):
            return DEFAULT_NAME
        finally:
            fetched.release()
        return DEFAULT_NAME if name_problem(name) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """`cache_bytes` limits the size of the cache in `cache_directory`; 0 means no limit.

    `credential_path` is the value of TRITON_CLOUD_CREDENTIAL_PATH, empty if it is not set.
    """

    cache_directory: Path
    cache_bytes: int
    credential_path: str = ""


class SourceOpener:
    """Opens the repositories of one server; those in object stores share one cache and one `progress`.

    It makes the cache directory and imports an SDK when the first repository needs them. Any thread.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.progress = DownloadProgress()
        self._options = options
        self._lock = threading.Lock()
        self._clouds: CloudOpener | None = None

    def open(self, text: str, *, any_layout: bool = False, single_model: str = "") -> Source:
        """Return the source at `text`, without asking its storage.

        With `any_layout` the place may also hold a single model, called `single_model` if that is not empty, and it
        must hold something. This does not apply to the root of a bucket or a file system, which has no name.

        Raises Unsupported and ConfigInvalid as `parse_location` and `read_cloud_credentials` do;
        RepositoryUnavailable if no entry of the credential file fits or the cache directory is unusable.
        """
        location = parse_location(text)
        if location.scheme is Scheme.LOCAL:
            local, path = LocalSource(Path(location.text)), Path(location.text).absolute()
            if not any_layout or not path.name:
                return local
            return AnyLayoutSource(LocalSource(path.parent), path.name, local, name=single_model, required=True)
        clouds = self._cloud_opener()
        source = clouds.open(location)
        if not any_layout or not location.prefix:
            return source
        folder = location.prefix.rpartition("/")[2]
        return AnyLayoutSource(clouds.open_above(location), folder, source, name=single_model, required=True)

    def open_folder(self, text: str) -> ObjectFolder:
        """Return the folder at `text`, in an object store, without asking it. Raises what `open` raises."""
        return self._cloud_opener().open_folder(parse_location(text))

    def stop(self) -> None:
        """End the running downloads soon; none starts again."""
        with self._lock:
            clouds = self._clouds
        if clouds is not None:
            clouds.stop()

    def _cloud_opener(self) -> CloudOpener:
        from trident.core.repository.cloud_sources import CloudOpener  # for servers with an object store only

        with self._lock:
            if self._clouds is None:
                self._clouds = CloudOpener(self._options, self.progress)
            return self._clouds


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
        """Raise RepositoryUnavailable for a repository in which nothing was found because its place does not exist."""
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
