"""Reads the settings of a server from its command line, its environment and its platform.

The command line overrides the environment, which overrides the platform (app/platforms/detect.py), which overrides the
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.platforms.detect import find_platform
from app.process.environment import process_environment
from app.settings.command_line import CommandLine
from app.settings.rules import check, deprecations, overridden_trace_options, without_tls, without_tokens
from app.settings.server import SERVER_OPTIONS, ServerSettings
from app.settings.unused import UNUSED_OPTIONS


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
