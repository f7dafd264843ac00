"""`trident validate`: every problem of every model of a repository, without opening a port."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.commands.validation_report import Finding, Report, json_report, text_report
from app.settings.command_line import CommandLine
from app.settings.groups.backends import split_backend_settings
from app.settings.option import BadOption, Option
from app.settings.option_types import BadValue, choice, integer
from app.settings.process_environment import disable_telemetry
from app.settings.server import SERVER_OPTIONS
from core.errors import RepositoryUnavailable, ServerError

if TYPE_CHECKING:
    from core.backends.base import BackendInstance
    from core.backends.registry import BackendRegistry
    from core.config.golden.request import GoldenRequest
    from core.config.model_spec import ModelSpec
    from core.config.problem import Problem
    from core.config.schema import ModelConfig
    from core.repository.layout import ModelDirectory

Check = Callable[["ModelDirectory"], Sequence["Problem"]]

_FORMAT = Option(
    flag="format",
    kind=choice("format", "text", "json"),
    help="Form of the report.",
    section="",
    variable="",
    default="text",
)
_ACCEPTED = (
    _FORMAT,
    *(SERVER_OPTIONS[name] for name in ("model_config_name", "disable_auto_complete_config", "backend_config")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateOptions:
    """`repositories` are local directories; `backend_config` as in ServerSettings."""

    repositories: tuple[str, ...]
    format: str = "text"
    config_name: str = ""
    auto_complete: bool = True
    backend_config: tuple[str, ...] = ()


def validate(arguments: Sequence[str], *, check: Check | None = None) -> int:
    """Print the report; the exit status is 1 if there is a problem, else 0.

    `check` finds the problems of one model; None is the real one, which makes sessions. Raises BadOption.
    """
    options = read_validate_options(arguments)
    _log_warnings_only()
    disable_telemetry()
    report = examine(options.repositories, check or _checker(options))
    sys.stdout.write(json_report(report) if options.format == "json" else text_report(report))
    return 1 if report.findings else 0


def read_validate_options(arguments: Sequence[str]) -> ValidateOptions:
    """The options of the arguments after `validate`. Raises BadOption."""
    given, repositories = CommandLine(_ACCEPTED).split(arguments)
    values: dict[str, Any] = {}
    for option, text in given:
        try:
            value = option.kind.parse(text)
        except BadValue as error:
            raise BadOption.of(f"--{option.flag}", str(error)) from None
        values[option.flag] = (*values.get(option.flag, ()), value) if option.repeatable else value
    if not repositories:
        raise BadOption("a model repository must be named: trident validate REPO")
    return ValidateOptions(
        repositories=tuple(repositories),
        format=values.get("format", "text"),
        config_name=values.get("model-config-name", ""),
        auto_complete=not values.get("disable-auto-complete-config", False),
        backend_config=values.get("backend-config", ()),
    )


def examine(repositories: Iterable[str], check: Check) -> Report:
    """What `check` finds in each model of `repositories`, and what is wrong with the repositories themselves."""
    from core.repository.layout import scan_repository

    report = Report()
    places: dict[str, str] = {}
    for repository in repositories:
        try:
            directories = scan_repository(Path(repository))
        except RepositoryUnavailable as error:
            report.findings.append(Finding(repository, "", repository, error.message, error.hint or ""))
            continue
        for directory in directories:
            report.models += 1
            other = places.setdefault(directory.name, repository)
            if other != repository:
                hint = f"the other one is {Path(other, directory.name)}"
                message = "model appears in two or more repositories"
                report.findings.append(Finding(repository, directory.name, str(directory.path), message, hint))
            report.findings += [
                Finding(repository, directory.name, problem.path, problem.message, problem.hint)
                for problem in check(directory)
            ]
    return report


def _log_warnings_only() -> None:
    """What the examination logs beside the report goes to stderr; its errors are in the report already."""
    from core.observability.logging import LogOptions, configure_logging

    configure_logging(LogOptions(info=False, error=False))


def _checker(options: ValidateOptions) -> Check:
    """The real check: the configuration, the files that it names, a session of every version, golden requests run."""
    from core.backends.devices.cuda import gpu_ids
    from core.backends.registry import DEFAULT_MAX_BATCH_SIZE, BackendRegistry
    from core.repository.model_problems import problems_of

    settings = split_backend_settings(options.backend_config)
    try:
        for values in settings.values():
            integer(0).parse(values.get(DEFAULT_MAX_BATCH_SIZE, "0"))
    except BadValue as error:
        raise BadOption.of("--backend-config", str(error)) from None
    backends = BackendRegistry(settings, gpu_ids=gpu_ids())

    def run_golden(
        path: Path, config: ModelConfig, spec: ModelSpec, golden: Sequence[GoldenRequest]
    ) -> Sequence[Problem]:
        return golden_problems(backends, path, config, spec, golden)

    def check(directory: ModelDirectory) -> Sequence[Problem]:
        return problems_of(
            directory,
            backends,
            config_name=options.config_name,
            auto_complete=options.auto_complete,
            run_golden=run_golden,
        )

    return check


def golden_problems(
    backends: BackendRegistry,
    path: Path,
    config: ModelConfig,
    spec: ModelSpec,
    golden: Sequence[GoldenRequest],
) -> Sequence[Problem]:
    """Load the version in directory `path`, run each of `golden` on its first instance, and free it again."""
    from core.backends.base import LoadContext
    from core.backends.devices.cpu_budget import available_cores, plan_threads
    from core.config.placement import placements

    placed = placements(config)[:1]
    threads = plan_threads(available_cores(), 1).intra_op_threads
    context = LoadContext(path=path, config=config, spec=spec, placements=placed, threads=threads)
    problems: list[Problem] = []
    try:
        with ExitStack() as loaded:
            model = backends.find(config).load(context)
            loaded.callback(model.close)
            for placement in placed:
                instance = model.instance(placement)
                loaded.callback(instance.close)
                for request in golden:
                    problems += _golden_problem(instance, spec, request)
    except ServerError as error:
        problems.append(_problem(str(path), error))
    return problems


def _golden_problem(instance: BackendInstance, spec: ModelSpec, request: GoldenRequest) -> Iterator[Problem]:
    from core.config.request_validator import RequestValidator
    from core.lifecycle.golden_check import check_golden

    try:
        check_golden(instance, spec, RequestValidator(spec).check, [request])
    except ServerError as error:
        yield _problem(f"golden/{request.name}", error)


def _problem(path: str, error: ServerError) -> Problem:
    from core.config.problem import Problem

    return Problem(path, error.message, error.hint or "")
