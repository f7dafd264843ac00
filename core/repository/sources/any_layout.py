"""A folder of unknown shape as a model repository: what platforms hand over is whatever a person once uploaded.

    repository   ROOT/MODEL/config.pbtxt, ROOT/MODEL/VERSION/model.onnx
    model        ROOT/config.pbtxt, ROOT/VERSION/model.onnx       one model, without a repository around it
    files        ROOT/model.onnx, perhaps ROOT/config.pbtxt       the same, without a version directory

Source: docs/spec/sagemaker.md section B2.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from core.config.platforms import PLATFORMS
from core.errors import ConfigInvalid, RepositoryUnavailable
from core.repository.layout import CONFIG_FILE, NAMED_CONFIGS
from core.repository.model_config import read_config
from core.repository.sources.single_model import PlacedModel
from core.repository.sources.source import Fetched, Source, SourceFile
from core.repository.stores.object_names import name_problem
from core.repository.versions import version_number

_log = logging.getLogger("trident.repository")

MODEL_FILES = frozenset(row.filename for row in PLATFORMS)
DEFAULT_NAME = "model"
_SHOWN = 10


class Shape(Enum):
    REPOSITORY = "repository"
    MODEL = "model"
    FILES = "files"


def shape_of(paths: Collection[str]) -> Shape:
    """What a folder with these files is. A repository where in doubt, so that Triton's users find what they know.

    Triton refuses a folder with a config.pbtxt in it and takes everything else for a repository.
    """
    tops = {path.partition("/")[0] for path in paths}
    versioned = any(_version_and_name(path) for path in paths)
    if CONFIG_FILE in paths:
        return Shape.FILES if tops & MODEL_FILES and not versioned else Shape.MODEL
    if any(can_be_model(below) for below in _by_folder(paths).values()):
        return Shape.REPOSITORY
    if any(found[1] in MODEL_FILES for path in paths if (found := _version_and_name(path))):
        return Shape.MODEL
    return Shape.FILES if tops & MODEL_FILES else Shape.REPOSITORY


def can_be_model(paths: Iterable[str]) -> bool:
    """Whether a folder with these files is a model's: it has a configuration or a version directory."""
    return any(
        path == CONFIG_FILE
        or (path.startswith(f"{NAMED_CONFIGS}/") and path.endswith(".pbtxt"))
        or _version_and_name(path) is not None
        for path in paths
    )


class AnyLayoutSource:
    """The Source of the folder `folder` of `parent`, whatever its shape; `repository` is the same folder as a Source.

    What it is, is decided once, when something is first found in it. A single model is called `name`; where that is
    empty, as its configuration says, or else `model`. `required`: a folder without a model is an error where all
    its models are asked for, because a platform hands over nothing else.
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

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        """Without the folders that cannot be models, such as `code` and `.git`: people upload whole projects.

        Each of those is logged once.
        """
        listed = self._source().scan()
        found = {name: files for name, files in listed.items() if can_be_model(file.path for file in files)}
        ignored = listed.keys() - found.keys()
        for name in sorted(ignored - self._ignored):
            _log.info("ignore folder '%s' in %s: it has neither a configuration nor a version", name, self.location)
        self._ignored = ignored
        if not found and self._required:
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
        """What is there instead, in words."""
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
            shape = shape_of([file.path for file in files])
            self._decided = self._repository if shape is Shape.REPOSITORY else self._placed(shape, files)
            return self._decided

    def _placed(self, shape: Shape, files: Sequence[SourceFile]) -> PlacedModel:
        name = self._name or self._configured_name([file for file in files if file.path == CONFIG_FILE])
        _log.info("%s is one model without a repository around it: it is served as '%s'", self.location, name)
        return PlacedModel(self._parent, self._folder, name, bare=shape is Shape.FILES)

    def _configured_name(self, configuration: Sequence[SourceFile]) -> str:
        """A configuration that cannot be read has no say: loading the model will tell what is wrong with it."""
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


def _version_and_name(path: str) -> tuple[int, str] | None:
    """The version directory that `path` is in, and the name of what is in that; None if it is in none."""
    folder, slash, rest = path.partition("/")
    version = version_number(folder) if slash else None
    return None if version is None else (version, rest.partition("/")[0])


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    """The paths below each sub-folder."""
    found: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, rest = path.partition("/")
        if slash:
            found.setdefault(folder, []).append(rest)
    return found
