"""The options of the commands beside `serve`, and those of the cache of models that several of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.adapters.common.options import BadOption, BadValue, Option
from trident.app.settings.reading import split_arguments
from trident.app.settings.server import SERVER_OPTIONS, cache_directory

if TYPE_CHECKING:
    from trident.core.repository.opener import SourceOpener


def read_values(options: Sequence[Option], arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of all options by flag, and the arguments that are not options. Raises BadOption."""
    values = {each.flag: each.default for each in options}
    given, others = split_arguments(options, arguments)
    for option, text in given:
        try:
            value = option.kind.parse(text)
        except BadValue as error:
            raise BadOption.of(f"--{option.flag}", str(error)) from None
        values[option.flag] = (*values[option.flag], value) if option.repeatable else value
    return values, others


_DIRECTORY, _SIZE = (SERVER_OPTIONS[name] for name in ("model_cache_directory", "model_cache_bytes"))
_MOUNTS = tuple(
    SERVER_OPTIONS[name].variable for name in ("aws_mount_directory", "gcs_mount_directory", "azure_mount_directory")
)
# None stands for an option that is not given, because a variable may set it.
CACHE_OPTIONS = tuple(replace(each, default=None) for each in (_DIRECTORY, _SIZE))


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudCache:
    """As in ServerSettings. An empty `directory` is the default one; `max_bytes` 0 means no limit."""

    directory: str = ""
    max_bytes: int = _SIZE.default
    credential_path: str = ""

    @property
    def path(self) -> Path:
        """The directory of the cache. Raises NoTemporaryDirectory if the user has none."""
        return Path(self.directory or cache_directory(""))

    def opener(self) -> SourceOpener:
        """A new opener of repositories; it must be stopped."""
        from trident.core.repository.opener import SourceOpener, SourceOptions

        return SourceOpener(
            SourceOptions(cache_directory=self.path, cache_bytes=self.max_bytes, credential_path=self.credential_path)
        )


def read_cloud_cache(given: Mapping[str, Any], environment: Mapping[str, str]) -> CloudCache:
    """The cache that `given`, values by flag of which some may be None, and variables name. Raises BadOption."""
    directory, size = given.get(_DIRECTORY.flag), given.get(_SIZE.flag)
    mount = next(filter(None, map(environment.get, _MOUNTS)), "")
    text = environment.get(_SIZE.variable)
    if size is None and text:
        try:
            size = _SIZE.kind.parse(text)
        except BadValue as error:
            raise BadOption.of(_SIZE.variable, str(error)) from None
    return CloudCache(
        directory=directory or environment.get(_DIRECTORY.variable) or (cache_directory(mount) if mount else ""),
        max_bytes=_SIZE.default if size is None else size,
        credential_path=environment.get(SERVER_OPTIONS["cloud_credential_path"].variable, ""),
    )
