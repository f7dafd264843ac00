"""Every problem and every warning of a model directory, found without serving the model.

Source: docs/spec/model-config.md sections 2.2 and 2.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from core.config.backend_facts import BackendFacts
from core.config.golden.reader import golden_requests
from core.config.golden.request import GoldenRequest
from core.config.model_spec import ModelSpec
from core.config.platforms import is_ensemble
from core.config.problem import InvalidModelConfig, Problem
from core.config.resolve import resolve_model_spec
from core.config.schema import ModelConfig
from core.config.settings_without_effect import settings_without_effect
from core.config.validation.model_config import agent_problems
from core.config.validation.signature import batching_problem, validate_against_signature
from core.config.validation.tensors import tensor_problems
from core.config.warmup import warmup_problems
from core.errors import NotInstalled, ServerError
from core.repository.checksums import check_checksums
from core.repository.config_completion import Completion, complete
from core.repository.config_file import read_config
from core.repository.labels import read_labels
from core.repository.layout import ModelDirectory
from core.repository.versions import version_path

# Tries the version in a directory, and runs its golden requests.
RunGolden = Callable[[Path, ModelConfig, ModelSpec, Sequence[GoldenRequest]], Sequence[Problem]]
NoteValid = Callable[[ModelConfig, ModelSpec], None]
# Takes the directory of a version that was checked without its framework, and what is missing.
NoteUnchecked = Callable[[Path, NotInstalled], None]
NoteWarning = Callable[[Problem], None]


def problems_of(
    directory: ModelDirectory,
    backends: BackendFacts,
    *,
    config_name: str = "",
    auto_complete: bool = True,
    run_golden: RunGolden | None = None,
    note_valid: NoteValid = lambda config, spec: None,
    note_unchecked: NoteUnchecked = lambda path, error: None,
    note_warning: NoteWarning = lambda warning: None,
) -> list[Problem]:
    """Every problem of the model in `directory`, including its files and graphs; empty for a model that would load.

    Unlike `load_config` it inspects the graph of every selected version, completes each version from its own graph, and
    reads labels, warmup files and golden requests. `run_golden` tries the model and runs the golden requests if nothing
    else is wrong; None runs none. `backends` check each version's complete configuration. `note_valid` is called with
    each version of a model without problems, `note_unchecked` with those whose framework is missing: that is no problem
    of a model. `note_warning` is called with what lets a version load, but makes its answers wrong.
    """
    valid: dict[int, Completion] = {}
    try:
        problems = _problems_of(
            directory, backends, config_name, auto_complete, run_golden, valid, note_unchecked, note_warning
        )
    except OSError as error:
        path = str(error.filename or directory.path)
        hint = "the server's user must be able to read every file and enter every folder of a model"
        return [Problem(path, f"failed to read model '{directory.name}': {error.strerror}", hint)]
    for version, each in valid.items() if not problems else ():
        note_valid(each.config, resolve_model_spec(each.config, version, {}))
    return problems


def warnings_of(directory: ModelDirectory, *, config_name: str = "") -> list[Problem]:
    """The settings of the model's configuration that have no effect; empty if it cannot be read."""
    try:
        return settings_without_effect(read_config(directory, config_name=config_name))
    except ServerError:  # a problem of the model
        return []


def _problems_of(
    directory: ModelDirectory,
    backends: BackendFacts,
    config_name: str,
    auto_complete: bool,
    run_golden: RunGolden | None,
    valid: dict[int, Completion],
    note_unchecked: NoteUnchecked,
    note_warning: NoteWarning,
) -> list[Problem]:
    """As `problems_of`. Raises OSError for a file or folder that cannot be read.

    Puts the versions whose configuration is valid into `valid`.
    """
    try:
        written = read_config(directory, config_name=config_name, required=not auto_complete)
        if not agent_problems(written):
            check_checksums(directory, written)
    except InvalidModelConfig as error:
        return list(error.problems)
    except ServerError as error:
        return [Problem.of(str(directory.path), error)]

    completed = partial(complete, directory, written, backends, auto_complete=auto_complete)
    try:
        latest = completed()
    except ServerError as error:  # the backend cannot be imported
        return [Problem.of(str(directory.path), error)]
    if not latest.versions:
        return _config_problems(latest)
    by_version = dict.fromkeys(latest.versions, latest)
    if latest.is_of_one_version:
        by_version |= {version: completed(version=version) for version in latest.versions[:-1]}
    problems: list[Problem] = []
    for each in by_version.values():
        problems += _config_problems(each)
    valid |= {version: each for version, each in by_version.items() if not _config_problems(each)}
    for version, each in valid.items():
        problems += _version_problems(directory, version, each, backends, note_unchecked, note_warning)
    run = None if problems else run_golden
    for version, each in valid.items():
        # Those of an ensemble need the models of its steps.
        problems += _golden_problems(directory, version, each, None if is_ensemble(each.config) else run)
    # A problem that concerns several versions is listed once.
    return list(dict.fromkeys(problems))


def _config_problems(done: Completion) -> list[Problem]:
    """The problems of a configuration, including those of inputs and outputs that were not validated."""
    problems = list(done.problems)
    if not done.validated:
        problems += tensor_problems(done.config, done.config.name, completed=False)
    if done.failure is not None:
        problems.append(Problem.of(str(done.path), done.failure))
    return problems


def _version_problems(
    directory: ModelDirectory,
    version: int,
    done: Completion,
    backends: BackendFacts,
    note_unchecked: NoteUnchecked,
    note_warning: NoteWarning,
) -> list[Problem]:
    """What keeps a version from being loaded as configured, except its golden requests."""
    config, path = done.config, version_path(directory, version)
    problems: list[Problem] = []
    try:
        read_labels(directory, config)
    except ServerError as error:
        problems.append(Problem.of("output.label_filename", error))
    if is_ensemble(config):
        return problems
    problems += warmup_problems(config, resolve_model_spec(config, version, {}), directory.path)
    try:
        signature = done.signature or backends.inspect(path, config)
    except InvalidModelConfig as error:
        return [*problems, *error.problems]
    except ServerError as error:
        return [*problems, Problem.of(str(path), error)]
    if signature is not None:
        problems += validate_against_signature(config, signature, directory.name)
        warning = batching_problem(config, signature)
        if warning is not None:
            note_warning(warning)
    try:
        backends.check(config)
    except NotInstalled as error:
        note_unchecked(path, error)
    except ServerError as error:
        problems.append(Problem.of(str(path), error))
    return problems


def _golden_problems(directory: ModelDirectory, version: int, done: Completion, run: RunGolden | None) -> list[Problem]:
    """The problems of the golden requests; the files are checked even if `run` is None."""
    spec = resolve_model_spec(done.config, version, {})
    try:
        golden = golden_requests(directory.path, spec, version)
    except InvalidModelConfig as error:
        return list(error.problems)
    return [] if run is None else list(run(version_path(directory, version), done.config, spec, golden))
