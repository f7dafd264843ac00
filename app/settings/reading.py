"""Reads the settings of a server from its command line, its environment and its platform.

The command line overrides the environment, which overrides the platform's variables and then its defaults. Everything
that is special about a platform comes from its row (adapters/common/platform.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.adapters.common.options import BadOption, BadValue, OptionValues
from trident.adapters.common.platform import PLATFORM, Platform, PlatformSettings
from trident.app.process.environment import process_environment
from trident.app.settings.groups import PLAIN, PLATFORMS, UNUSED_OPTIONS
from trident.app.settings.rules import check, deprecations, overridden_trace_options, without_tls, without_tokens
from trident.app.settings.server import PLATFORM_OPTIONS, SERVER_OPTIONS, ServerSettings, cache_directory
from trident.app.settings.sources import CommandLine, PlatformText, collect, parse_arguments
from trident.core.errors import ServerError

if TYPE_CHECKING:
    from trident.core.repository.sources import SourceOpener


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


def with_repositories(arguments: Sequence[str], around: Callable[[str], str] = str) -> list[str]:
    """The arguments of `trident serve` in which each word that is not an option is a `--model-repository`.

    `around` gives the repository for a word. Raises BadOption as `read_settings` does.
    """
    given, words = CommandLine((*SERVER_OPTIONS.values(), *UNUSED_OPTIONS)).split(arguments)
    options = [f"--{option.flag}={text}" if option.takes_value else f"--{option.flag}" for option, text in given]
    return options + [f"--model-repository={around(word)}" for word in words]


def read_settings(
    arguments: Sequence[str], environ: Mapping[str, str] | None = None, *, needs_repository: bool = True
) -> ServerSettings:
    """The settings that the arguments after the command and `environ` give; None is the process environment.

    With `needs_repository` a missing model repository is an error. Raises BadOption with the text for the person who
    starts the server.
    """
    variables = process_environment() if environ is None else environ
    try:
        given, platforms, warnings, any_layout = _with_platforms(arguments, variables)
    except ServerError as error:
        raise BadOption(f"{error.message}\n{error.hint}" if error.hint else error.message) from None
    settings = ServerSettings(
        **{name: value for name, value in given.values.items() if name not in PLATFORM_OPTIONS},
        platform_values={name: given.value(name) for name in PLATFORM_OPTIONS},
        open_platforms=platforms,
        sources=given.sources,
        warnings=(*warnings, *deprecations(given.values), *without_tls(given.values)),
        without_effect=given.without_effect,
        any_layout=any_layout or bool(given.values.get("single_model")),
    )
    check(settings, needs_repository=needs_repository)
    late = (*without_tokens(settings), *overridden_trace_options(settings))
    return replace(settings, warnings=(*settings.warnings, *late))


def _with_platforms(
    arguments: Sequence[str], environ: Mapping[str, str]
) -> tuple[OptionValues, dict[Platform, PlatformSettings], list[str], bool]:
    """The values of all sources, the settings of the platforms whose ports are open, the warnings of their rows, and
    whether the repository is a platform's. Raises BadOption, and ServerError for what a platform's row refuses.
    """
    given = collect(SERVER_OPTIONS, arguments, environ)
    chosen = given.value("platform")
    detected, evidence = next(((each, "") for each in PLATFORMS if each.name == chosen), (None, ""))
    if chosen == "auto":
        detected, evidence = _detected(given, environ)
    if detected is not None:
        readers = [detected]
    else:
        readers = [each for each in PLATFORMS if chosen != PLAIN or given.value(each.switch)]
    found = [each.texts(environ, on_platform=each is detected) for each in readers]
    by_flag = {each.flag: each for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS) if each.flag}
    texts = [PlatformText(by_flag[flag], text, source) for each in found for flag, text, source in each.options]
    for line in (line for each in found for line in each.arguments):
        texts += parse_arguments(by_flag.values(), line.arguments, line.source)
    given = collect(SERVER_OPTIONS, arguments, environ, platform=texts)
    if detected is not None and evidence:
        given.set("platform", detected.name, evidence)
    given.without_effect = (*given.without_effect, *(name for each in found for name in each.without_effect))
    open_platforms = {}
    for each in PLATFORMS:
        if each is detected or given.value(each.switch):
            settings = each.settings(given, environ, on_platform=each is detected)
            if given.value(each.switch):
                open_platforms[each] = settings
    sources = {PLATFORM, *(text.source for each in found for text in each.options)}
    any_layout = given.sources.get("model_repository") in sources
    return given, open_platforms, [text for each in found for text in each.warnings], any_layout


def _detected(given: OptionValues, environ: Mapping[str, str]) -> tuple[Platform | None, str]:
    """The platform, and the variable or directory that shows it; (None, "") without one. Raises BadOption for two."""
    found = [(each, evidence) for each in PLATFORMS if (evidence := each.evidence(environ, given)) is not None]
    sure = [(each, evidence) for each, evidence in found if not evidence.may_be_chance]
    if len(sure) > 1:
        shown = ", and ".join(f"{evidence.source}, which shows {each.title}" for each, evidence in sure)
        choices = " or ".join(f"--platform={each.name}" for each, _ in sure)
        raise BadOption(f"the environment has {shown}: choose one with {choices}")
    for each, evidence in (*sure, *found):
        return each, evidence.source
    return None, ""
