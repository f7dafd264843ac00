"""Checks a model directory without serving it: every problem and warning.

Source: docs/spec/model-config.md sections 2.2 and 2.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from trident.core.config.autocomplete import BackendFacts
from trident.core.config.golden import GoldenRequest, golden_requests
from trident.core.config.platforms import is_ensemble
from trident.core.config.problem import InvalidModelConfig, Problem
from trident.core.config.resolve import resolve_model_spec, warmup_problems
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.config.validate import (
    agent_problems,
    batching_problem,
    settings_without_effect,
    tensor_problems,
    validate_against_signature,
)
from trident.core.errors import NotInstalled, ServerError
from trident.core.repository.config import Completion, check_checksums, complete, read_config
from trident.core.repository.layout_hints import unread_configuration
from trident.core.repository.repository import ModelDirectory, chmod_hint, read_labels, version_path

# Tries the version in a directory, and runs its golden requests.
RunGolden = Callable[[Path, ModelConfig, ModelSpec, Sequence[GoldenRequest]], Sequence[Problem]]


@dataclass(slots=True)
class ModelCheck:
    """The result of checking a model directory.

    `problems` is empty for a model that would load; then `valid` has the configuration and the spec of each version.
    `warnings` are problems that do not prevent a load but make answers wrong. `unchecked` has the directory of each
    version whose framework is missing, which is not a problem of the model, and what is missing. `backend` is "" if it
    cannot be told, and for an ensemble.
    """

    backend: str = ""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    unchecked: list[tuple[Path, NotInstalled]] = field(default_factory=list)
    valid: list[tuple[ModelConfig, ModelSpec]] = field(default_factory=list)


def check_model(
    directory: ModelDirectory,
    backends: BackendFacts,
    *,
    config_name: str = "",
    auto_complete: bool = True,
    run_golden: RunGolden | None = None,
) -> ModelCheck:
    """Check the model in `directory`, including its files and graphs.

    Unlike `load_config` it inspects the graph of every selected version, completes each version from its own graph, and
    reads labels, warmup files and golden requests. `run_golden` tries the model and runs the golden requests if nothing
    else is wrong; None runs none. `backends` check each version's complete configuration.
    """
    check = ModelCheck()
    try:
        valid = _check_versions(check, directory, backends, config_name, auto_complete, run_golden)
    except OSError as error:
        path = str(error.filename or directory.path)
        hint = chmod_hint(directory.path) if isinstance(error, PermissionError) else ""
        problem = Problem(path, f"failed to read model '{directory.name}': {error.strerror}", hint)
        return ModelCheck(check.backend, [problem], check.warnings, check.unchecked)
    # A problem or warning that concerns several versions is listed once.
    check.problems, check.warnings = list(dict.fromkeys(check.problems)), list(dict.fromkeys(check.warnings))
    if not check.problems:
        check.valid = [(done.config, resolve_model_spec(done.config, version, {})) for version, done in valid.items()]
    return check


def warnings_of(directory: ModelDirectory, *, config_name: str = "") -> list[Problem]:
    """Return the settings of the model's configuration without effect, or the file that is not read in its place; none
    if it cannot be read."""
    try:
        if unread := unread_configuration(directory):
            return [Problem(unread[0], "it is not read as the configuration of the model", unread[1])]
        return settings_without_effect(read_config(directory, config_name=config_name))
    except (OSError, ServerError):  # a problem of the model
        return []


def _check_versions(
    check: ModelCheck,
    directory: ModelDirectory,
    backends: BackendFacts,
    config_name: str,
    auto_complete: bool,
    run_golden: RunGolden | None,
) -> Mapping[int, Completion]:
    """Add to `check`, and return the versions whose configuration is valid.

    Raises OSError for a file or folder that cannot be read.
    """
    problems = check.problems
    try:
        written = read_config(directory, config_name=config_name, required=not auto_complete)
        if not list(agent_problems(written)):
            check_checksums(directory, written)
        completed = partial(complete, directory, written, backends, auto_complete=auto_complete)
        latest = completed()
    except InvalidModelConfig as error:
        problems += error.problems
        return {}
    except ServerError as error:  # also if the backend cannot be imported
        problems.append(Problem.of(str(directory.path), error))
        return {}
    check.backend = latest.config.backend
    if not latest.versions:
        problems += _config_problems(latest)
        return {}
    by_version = dict.fromkeys(latest.versions, latest)
    # A configuration that a version completed holds for that version only.
    if latest.signature is not None or latest.is_by_model or latest.failure is not None:
        by_version |= {version: completed(version=version) for version in latest.versions[:-1]}
    for version, each in list(by_version.items()):
        if isinstance(each.failure, NotInstalled):
            check.unchecked.append((each.path, each.failure))
            del by_version[version]
    for each in by_version.values():
        problems += _config_problems(each)
    valid = {version: each for version, each in by_version.items() if not _config_problems(each)}
    for version, each in valid.items():
        problems += _version_problems(check, directory, version, each, backends)
    run = None if problems else run_golden
    for version, each in valid.items():
        # Those of an ensemble need the models of its steps.
        problems += _golden_problems(directory, version, each, None if is_ensemble(each.config) else run)
    return valid


def _config_problems(done: Completion) -> list[Problem]:
    problems = list(done.problems)
    if not done.validated:
        problems += tensor_problems(done.config, done.config.name, completed=False)
    if done.failure is not None:
        problems.append(Problem.of(str(done.path), done.failure))
    return problems


def _version_problems(
    check: ModelCheck, directory: ModelDirectory, version: int, done: Completion, backends: BackendFacts
) -> Iterator[Problem]:
    config, path = done.config, version_path(directory, version)
    try:
        read_labels(directory, config)
    except ServerError as error:
        yield Problem.of("output.label_filename", error)
    if is_ensemble(config):
        return
    yield from warmup_problems(config, resolve_model_spec(config, version, {}), directory.path)
    try:
        signature = done.signature or backends.inspect(path, config)
    except NotInstalled:  # which the check raises as well
        signature = None
    except InvalidModelConfig as error:
        yield from error.problems
        return
    except ServerError as error:
        yield Problem.of(str(path), error)
        return
    if signature is not None:
        yield from validate_against_signature(config, signature, directory.name)
        if warning := batching_problem(config, signature):
            check.warnings.append(warning)
    try:
        backends.check(config)
    except NotInstalled as error:
        check.unchecked.append((path, error))
    except ServerError as error:
        yield Problem.of(str(path), error)


def _golden_problems(directory: ModelDirectory, version: int, done: Completion, run: RunGolden | None) -> list[Problem]:
    spec = resolve_model_spec(done.config, version, {})
    try:
        golden = golden_requests(directory.path, spec, version)
    except InvalidModelConfig as error:
        return list(error.problems)
    return [] if run is None else list(run(version_path(directory, version), done.config, spec, golden))
