"""Reads the settings of a server from its command line, its environment and its platform.

The command line overrides the environment, which overrides the platform (app/platforms/detect.py), which overrides the
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.adapters.common.options import BadOption, BadValue
from trident.app.platforms.detect import find_platform
from trident.app.process.environment import process_environment
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.rules import check, deprecations, overridden_trace_options, without_tls, without_tokens
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings, cache_directory
from trident.app.settings.sources import CommandLine

if TYPE_CHECKING:
    from trident.core.repository.sources import SourceOpener


_DIRECTORY, _SIZE = (SERVER_OPTIONS[name] for name in ("model_cache_directory", "model_cache_bytes"))
_MOUNTS = tuple(SERVER_OPTIONS[name].variable for name in ("aws_mount_directory", "gcs_mount_directory"))
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
        from trident.core.repository.sources import SourceOpener, SourceOptions

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


def with_repositories(arguments: Sequence[str]) -> list[str]:
    """The arguments of `trident serve` in which each word that is not an option is a `--model-repository`.

    Raises BadOption as `read_settings` does.
    """
    given, words = CommandLine((*SERVER_OPTIONS.values(), *UNUSED_OPTIONS)).split(arguments)
    options = [f"--{option.flag}={text}" if option.takes_value else f"--{option.flag}" for option, text in given]
    return options + [f"--model-repository={word}" for word in words]


def read_settings(
    arguments: Sequence[str], environ: Mapping[str, str] | None = None, *, needs_repository: bool = True
) -> ServerSettings:
    """The settings that the arguments after the command and `environ` give; None is the process environment.

    With `needs_repository` a missing model repository is an error. Raises BadOption with the text for the person who
    starts the server.
    """
    found = find_platform(SERVER_OPTIONS, arguments, process_environment() if environ is None else environ)
    given = found.given
    settings = ServerSettings(
        **given.values,
        sources=given.sources,
        warnings=(*found.warnings, *deprecations(given.values), *without_tls(given.values)),
        without_effect=given.without_effect,
        sagemaker=found.sagemaker,
        vertex=found.vertex,
        any_layout=found.any_layout or bool(given.values.get("single_model")),
    )
    check(settings, needs_repository=needs_repository)
    late = (*without_tokens(settings), *overridden_trace_options(settings))
    return replace(settings, warnings=(*settings.warnings, *late))
