"""The configuration of a model directory: read, completed, checked; every problem and warning without serving it.

Source: docs/spec/model-config.md sections 2.2 and 2.4.
"""

from __future__ import annotations

import hashlib
import logging
import posixpath
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trident.core.config.autocomplete import (
    BackendFacts,
    Preparation,
    Watch,
    fill_identity,
    groups_on_cpu_instead,
    instance_group_problems,
    needs_signature,
    normalize,
    unwatched,
)
from trident.core.config.autocomplete import auto_complete as complete_config
from trident.core.config.platforms import is_ensemble
from trident.core.config.problem import InvalidModelConfig, ModelSignature, Problem, open_file, path_inside, read_file
from trident.core.config.schema import ModelConfig, copy_of, decode_config, parse_model_config
from trident.core.config.validate import AGENT_KEY, validate_model_config
from trident.core.errors import ConfigInvalid, ModelNotFound, ServerError
from trident.core.repository.layout_hints import layout_hint
from trident.core.repository.repository import (
    CONFIG_FILE,
    ModelDirectory,
    available_versions,
    chmod_hint,
    config_path,
    detection_files,
    select_versions,
    version_path,
)

# Bytes: far more than any real configuration has. Parsing this much takes half a minute.
LARGEST_CONFIG = 8 << 20

_log = logging.getLogger("trident.config")


def read_config(directory: ModelDirectory, *, config_name: str = "", required: bool = False) -> ModelConfig:
    """Read the configuration as written; an empty one without a file, unless it is `required`.

    Raises InvalidModelConfig, or ModelNotFound for a missing required one.
    """
    path = config_path(directory, config_name)
    if path is None:
        if not required:
            return ModelConfig()
        missing = directory.path / CONFIG_FILE
        _log.error("failed to open text file for read %s: No such file or directory", missing)
        raise ModelNotFound(
            f"model configuration is not provided for model '{directory.name}'",
            hint=f"write {missing}, or let auto-complete make it from the model file",
            model=directory.name,
        )
    try:
        content = read_file(path, LARGEST_CONFIG)
    except OSError as error:
        message = f"failed to open text file for read {path}: {error.strerror}"
        hint = chmod_hint(path) if isinstance(error, PermissionError) else ""
        raise InvalidModelConfig([Problem(str(path), message, hint)], model=directory.name) from error
    config = parse_model_config(decode_config(content, str(path)), str(path))
    if directory.is_renamed:
        config.name = directory.name
    return config


# Triton's checksum agent: files whose MD5 the configuration names are compared with it before anything reads them.
# Source: docs/spec/repository.md section 1.11.


_MD5_HINT = "copy the file of the author again, or write the MD5 of this one if it is right"


def check_checksums(directory: ModelDirectory, config: ModelConfig, *, without: Collection[int] = ()) -> None:
    """Raise InvalidModelConfig if a file is not the one that `config` names; its agents are valid.

    The files of the versions `without` are left out: they are checked when their version is loaded.
    """
    problems = list(_checksum_problems(directory, config, {str(version) for version in without}))
    if problems:
        raise InvalidModelConfig(problems, model=directory.name)


def _checksum_problems(directory: ModelDirectory, config: ModelConfig, without: Collection[str]) -> Iterator[Problem]:
    for index, agent in enumerate(config.model_repository_agents.agents):
        for key, expected in sorted(agent.parameters.items()):
            name = key.partition(":")[2]
            if posixpath.normpath(name).partition("/")[0] in without:
                continue
            field = f"model_repository_agents.agents[{index}].parameters[{key}]"
            path = path_inside(directory.path, name)
            if path is None:
                yield Problem(field, f"file {name} is outside of the model directory", "name a file of the model")
                continue
            try:
                with open_file(path) as file:
                    found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            except OSError as error:
                yield Problem(field, f"failed to open text file for read {name}: {error.strerror}", AGENT_KEY)
                continue
            if found != expected.lower():
                yield Problem(
                    field, f"Mismatched MD5 hash for file {name}, expect: {expected}, got: {found}", _MD5_HINT
                )


#     parsed -> fill identity -> normalise -> auto-complete from the graph -> normalise -> validate
#
# Source: docs/spec/model-config.md sections 2.2 and 2.4; docs/spec/repository.md section 1.2.


@dataclass(slots=True)
class Completion:
    """The result of completing a configuration.

    `failure` is the error that stopped it, other than a problem of the text, and `path` its file or directory.
    `validated`: inputs and outputs were checked. `signature` is that of the graph that the configuration was completed
    from; None if nothing was missing. `is_by_model`: the model completed it itself.
    """

    config: ModelConfig
    path: Path
    versions: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    failure: ServerError | None = None
    validated: bool = False
    signature: ModelSignature | None = None
    is_by_model: bool = False


def load_config(
    directory: ModelDirectory,
    written: ModelConfig,
    backends: BackendFacts,
    *,
    auto_complete: bool = True,
    version: int | None = None,
    watch: Watch = unwatched,
    preparation: Preparation | None = None,
) -> tuple[ModelConfig, ModelSignature | None]:
    """Return the complete, normalised and validated configuration; `written` stays unchanged.

    Beside it the signature of the graph from which it was completed; None if nothing was missing. A graph is inspected
    only if auto-complete needs it: that of `version`, or else of the highest version that the version policy selects.
    `watch` is given what ends code of the model's, and `preparation` what the inspection made for the load. Raises
    InvalidModelConfig with every problem, and what `backends` raise.
    """
    done = complete(
        directory, written, backends, auto_complete=auto_complete, version=version, watch=watch, preparation=preparation
    )
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
    return done.config, done.signature


def check_config(
    directory: ModelDirectory, written: ModelConfig, backends: BackendFacts, *, auto_complete: bool
) -> None:
    """Raise InvalidModelConfig for the problems of `written` that depend on neither graph nor machine; it stays
    unchanged.

    With auto-complete inputs and outputs are not checked, even if none is missing: a problem with them fails a version,
    not the model.
    """
    config = copy_of(written)
    fill_identity(config, directory.name, detection_files(directory))
    normalize(config, backends.gpu_ids(config))
    problems = validate_model_config(
        config,
        directory.name,
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
    watch: Watch = unwatched,
    preparation: Preparation | None = None,
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
        done.problems = validate_model_config(config, directory.name, layout_hint=hint)
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
        done.problems = validate_model_config(config, directory.name, completed=False)
        done.problems += instance_group_problems(config, directory.name, gpu_ids) + missing_version
        if done.problems:
            return done
        done.path = version_path(directory, done.versions[-1] if version is None else version)
        try:
            if done.is_by_model:
                backends.complete(done.path, config, watch)
            else:
                done.signature = backends.inspect(done.path, config, preparation)
            if done.signature is not None:
                complete_config(config, done.signature, backends.default_max_batch_size(config))
        except ServerError as error:
            done.failure = error
            return done
        normalize(config, gpu_ids)
    done.problems = validate_model_config(config, directory.name)
    done.problems += instance_group_problems(config, directory.name, gpu_ids) + missing_version
    done.validated = True
    return done


def _has_backend(config: ModelConfig) -> bool:
    return bool(config.backend) or is_ensemble(config)
