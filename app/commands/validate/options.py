"""The options of `trident validate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from app.settings.cloud_cache import CACHE_OPTIONS, CloudCache, read_cloud_cache
from app.settings.command_line import CommandLine
from app.settings.option import BadOption, Option
from app.settings.option_types import FLAG, BadValue, choice
from app.settings.server import SERVER_OPTIONS

_FORMAT = Option(
    flag="format",
    kind=choice("format", "text", "json"),
    help="Format of the report.",
    section="",
    variable="",
    default="text",
)
_GRAPH = Option(
    flag="graph",
    kind=choice("graph", "text", "svg", "dot"),
    help="Draw the valid ensembles to the standard output, and write the report to the error output. "
    "dot is graphviz's language.",
    section="",
    variable="",
    default="",
)
_RUN = Option(
    flag="run",
    kind=FLAG,
    help="Also run the initialize and finalize of models in Python, each in a process of its own; without it, they are "
    "only imported.",
    section="",
    variable="",
    default=False,
)
_REPORTED = (
    _FORMAT,
    _GRAPH,
    _RUN,
    *(
        SERVER_OPTIONS[name]
        for name in (
            *("model_config_name", "disable_auto_complete_config"),
            *("backend_config", "backend_directory", "gpu_missing"),
        )
    ),
)
ACCEPTED = (*_REPORTED, *CACHE_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateOptions:
    """`repositories` are values of --model-repository; `backend_config`, `backend_directory` and `gpu_missing` as in
    ServerSettings. `graph` is the form of the drawings of ensembles, "" for none.
    """

    repositories: tuple[str, ...]
    format: str = "text"
    graph: str = ""
    run: bool = False
    config_name: str = ""
    auto_complete: bool = True
    backend_config: tuple[str, ...] = ()
    backend_directory: str = SERVER_OPTIONS["backend_directory"].default
    gpu_missing: str = SERVER_OPTIONS["gpu_missing"].default
    cache: CloudCache = field(default_factory=CloudCache)


def read_validate_options(
    arguments: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})
) -> ValidateOptions:
    """The options that the arguments after `validate` give; those of the cache also come from variables.

    Raises BadOption.
    """
    given, repositories = CommandLine(ACCEPTED).split(arguments)
    values: dict[str, Any] = {}
    for option, text in given:
        try:
            value = option.kind.parse(text)
        except BadValue as error:
            raise BadOption.of(f"--{option.flag}", str(error)) from None
        values[option.flag] = (*values.get(option.flag, ()), value) if option.repeatable else value
    if not repositories:
        raise BadOption("a model repository is missing: trident validate REPO")
    return ValidateOptions(
        repositories=tuple(repositories),
        format=values.get("format", "text"),
        graph=values.get("graph", ""),
        run=values.get("run", False),
        config_name=values.get("model-config-name", ""),
        auto_complete=not values.get("disable-auto-complete-config", False),
        backend_config=values.get("backend-config", ()),
        backend_directory=values.get("backend-directory", SERVER_OPTIONS["backend_directory"].default),
        gpu_missing=values.get("gpu-missing", SERVER_OPTIONS["gpu_missing"].default),
        cache=read_cloud_cache(values, environment),
    )
