"""A folder of unknown shape as a model repository: a platform passes on whatever a user uploaded.

Source: docs/spec/sagemaker.md section B2.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from core.errors import ConfigInvalid, RepositoryUnavailable
from core.repository.config_file import read_config
from core.repository.layout import CONFIG_FILE
from core.repository.sources.folder_shape import FolderShape, can_be_model, folder_shape
from core.repository.sources.single_model import SingleModelSource
from core.repository.sources.source import Fetched, Source, SourceFile
from core.repository.stores.object_names import name_problem

_log = logging.getLogger("trident.repository")

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
        """What the folder holds, in words."""
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
            self._decided = self._repository if shape is FolderShape.REPOSITORY else self._single_model(shape, files)
            return self._decided

    def _single_model(self, shape: FolderShape, files: Sequence[SourceFile]) -> SingleModelSource:
        name = self._name or self._configured_name([file for file in files if file.path == CONFIG_FILE])
        _log.info("%s is one model without a repository around it: it is served as '%s'", self.location, name)
        return SingleModelSource(self._parent, self._folder, name, bare=shape is FolderShape.FILES)

    def _configured_name(self, configuration: Sequence[SourceFile]) -> str:
        """The name in the configuration. An unreadable one is ignored here: loading the model reports the error."""
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
