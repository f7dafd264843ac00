"""From the written configuration of a model directory to the complete, checked one.

    parsed -> fill identity -> normalise -> auto-complete from the graph -> normalise -> validate

Source: docs/spec/model-config.md sections 2.2 and 2.4; docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from core.config.autocomplete import auto_complete as complete_config
from core.config.autocomplete import needs_signature
from core.config.backend_facts import BackendFacts
from core.config.instance_groups import groups_on_cpu_instead
from core.config.normalize import fill_identity, normalize
from core.config.platforms import is_ensemble
from core.config.problem import InvalidModelConfig, Problem
from core.config.schema import ModelConfig, copy_of
from core.config.signature import ModelSignature
from core.config.validation.model_config import validate_model_config
from core.config.validation.signature import log_batching_problem
from core.errors import ConfigInvalid, ServerError
from core.repository.layout import ModelDirectory, detection_files
from core.repository.layout_mistakes import layout_hint
from core.repository.versions import available_versions, select_versions, version_path

_log = logging.getLogger("trident.config")


@dataclass(slots=True)
class Completion:
    """The result of completing a configuration.

    `failure` is the error that stopped it, other than a problem of the text; `path` is the file or directory that it
    concerns. `validated` tells whether inputs and outputs were checked. `signature` is that of the graph that the
    configuration was completed from; None if nothing was missing. `is_by_model`: the model completed it itself.
    """

    config: ModelConfig
    path: Path
    versions: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    failure: ServerError | None = None
    validated: bool = False
    signature: ModelSignature | None = None
    is_by_model: bool = False

    @property
    def is_of_one_version(self) -> bool:
        """Whether a version was asked, so that the configuration holds only for that version."""
        return self.signature is not None or self.is_by_model or self.failure is not None


def load_config(
    directory: ModelDirectory,
    written: ModelConfig,
    backends: BackendFacts,
    *,
    auto_complete: bool = True,
    version: int | None = None,
) -> ModelConfig:
    """The complete, normalised and validated configuration of the model in `directory`; `written` stays unchanged.

    A graph is inspected only if auto-complete needs it: that of `version`, or without it of the highest version that
    the version policy selects. Raises InvalidModelConfig with every problem, and what `backends` raise.
    """
    done = complete(directory, written, backends, auto_complete=auto_complete, version=version)
    if done.problems:
        raise InvalidModelConfig(done.problems, model=directory.name)
    for group in groups_on_cpu_instead(written, done.config):
        _log.warning(
            "instance group %s of model %s runs on the CPU, although it asks for a GPU: there is none for it, and "
            "--gpu-missing is cpu",
            group,
            directory.name,
        )
    failure, done.failure = done.failure, None
    if failure is not None:
        try:
            raise failure
        finally:
            # The exception references the frames that it passes through. If one of these frames referenced it in turn,
            # the cycle would keep the callers' objects alive, such as the files of a load request, until the garbage
            # collector runs.
            del failure
    if done.signature is not None:
        log_batching_problem(done.config, done.signature)
    return done.config


def check_config(
    directory: ModelDirectory, written: ModelConfig, backends: BackendFacts, *, auto_complete: bool
) -> None:
    """Raise InvalidModelConfig for the problems of `written` that do not depend on the graph; it stays unchanged.

    With auto-complete inputs and outputs are not checked, even if none is missing: a problem with them fails a version,
    not the model.
    """
    config = copy_of(written)
    fill_identity(config, directory.name, detection_files(directory))
    gpu_ids = backends.gpu_ids(config)
    normalize(config, gpu_ids)
    problems = validate_model_config(
        config,
        directory.name,
        gpu_ids=gpu_ids,
        completed=not auto_complete,
        layout_hint="" if _has_backend(config) else layout_hint(directory, config),
    )
    if problems:
        raise InvalidModelConfig(problems, model=directory.name)


def complete(
    directory: ModelDirectory,
    written: ModelConfig,
    backends: BackendFacts,
    *,
    auto_complete: bool,
    version: int | None = None,
) -> Completion:
    """Complete a copy of `written` as far as possible; arguments as in `load_config`."""
    config = copy_of(written)
    fill_identity(config, directory.name, detection_files(directory))
    gpu_ids = backends.gpu_ids(config)
    normalize(config, gpu_ids)
    done = Completion(config, directory.path)
    missing_version: list[Problem] = []
    try:
        available = available_versions(config, directory)
        hint = "" if available else layout_hint(directory, config)
        done.versions = select_versions(config, available, directory.name, hint)
    except ConfigInvalid as error:
        missing_version = [Problem.of("version_policy", error)]
    if not _has_backend(config):
        hint = layout_hint(directory, config)
        done.problems = validate_model_config(config, directory.name, gpu_ids=gpu_ids, layout_hint=hint)
        # One mistake is one problem: a folder without versions tells no backend either.
        done.problems += [each for each in missing_version if each.hint != hint]
        done.validated = True
        return done
    try:
        done.is_by_model = auto_complete and not is_ensemble(config) and backends.completes(config)
    except ServerError as error:
        done.failure = error
        return done
    if done.is_by_model or (auto_complete and not is_ensemble(config) and needs_signature(config)):
        done.problems = validate_model_config(config, directory.name, gpu_ids=gpu_ids, completed=False)
        done.problems += missing_version
        if done.problems:
            return done
        done.path = version_path(directory, done.versions[-1] if version is None else version)
        try:
            if done.is_by_model:
                backends.complete(done.path, config)
            else:
                done.signature = backends.inspect(done.path, config)
            if done.signature is not None:
                complete_config(config, done.signature, backends.default_max_batch_size(config))
        except ServerError as error:
            done.failure = error
            return done
        normalize(config, gpu_ids)
    done.problems = validate_model_config(config, directory.name, gpu_ids=gpu_ids) + missing_version
    done.validated = True
    return done


def _has_backend(config: ModelConfig) -> bool:
    """Whether it could be told what runs the model."""
    return bool(config.backend) or is_ensemble(config)
