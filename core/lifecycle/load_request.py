"""A load request of a client: a checked name, and perhaps a configuration and files.

Source: docs/spec/repository.md section 1.6, docs/spec/http.md section 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from trident.core.errors import InvalidRequest
from trident.core.repository.repositories import Located, ModelKey
from trident.core.repository.sources import OverrideSource

_FILE = "file:"


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """`config`, unparsed JSON, replaces the model's configuration file, and `located` its directory; None if not given.

    A context manager: at its end it removes the files that no version uses.
    """

    config: str | None
    located: Located | None
    _source: OverrideSource | None

    @staticmethod
    def read(name: str, parameters: Mapping[str, str | bytes]) -> LoadRequest:
        """Raises InvalidRequest with Triton's text."""
        check_model_name(name)
        files = {key.removeprefix(_FILE): value for key, value in parameters.items() if isinstance(value, bytes)}
        text = parameters.get("config")
        if files and text is None:
            raise InvalidRequest("Load parameter 'config' must be specified for model file override")
        config = text if isinstance(text, str) else None
        if not files:
            return LoadRequest(config, None, None)
        source = OverrideSource(name, files)
        located = Located(ModelKey(name), source, tuple(source.files(name) or ()))
        return LoadRequest(config, located, source)

    def __enter__(self) -> LoadRequest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._source is not None:
            self._source.close()


def check_model_name(name: str) -> None:
    """Raise InvalidRequest for a name that no model directory can have."""
    if not name.strip():
        raise InvalidRequest("Model name cannot be empty. Please enter a valid name to deploy.")
    if name == ".." or "/" in name:
        raise InvalidRequest(f"invalid model name '{name}', model name must not contain path traversal characters")
