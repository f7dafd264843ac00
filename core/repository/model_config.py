"""The configuration of a model directory, from the file to the checked message.

    read -> parse -> fill identity -> normalise -> auto-complete from the graph -> normalise -> validate

Source: docs/spec/model-config.md sections 2.2 and 2.4; docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.config.autocomplete import auto_complete, needs_signature
from core.config.golden.request import GoldenRequest, golden_requests
from core.config.instance_groups import GpuIds
from core.config.model_spec import ModelSpec
from core.config.normalize import fill_identity, normalize
from core.config.parse import decode_config, parse_model_config
from core.config.platforms import is_ensemble
from core.config.problem import InvalidModelConfig, Problem
from core.config.resolve import resolve_model_spec
from core.config.schema import ModelConfig
from core.config.signature import ModelSignature
from core.config.validation.model_config import validate_model_config
from core.config.validation.signature import validate_against_signature
from core.config.validation.tensors import tensor_problems
from core.config.warmup import warmup_problems
from core.errors import ConfigInvalid, ModelNotFound, ServerError
from core.repository.labels import read_labels
from core.repository.layout import CONFIG_FILE, ModelDirectory, config_file, detection_files
from core.repository.versions import select_versions, version_directories, version_path

Inspect = Callable[[Path, ModelConfig], ModelSignature]
# Loads the version in a directory and runs its golden requests, of which there is at least one.
RunGolden = Callable[[Path, ModelConfig, ModelSpec, Sequence[GoldenRequest]], Sequence[Problem]]
# Raises a ServerError for what a complete configuration asks of its backend that is not to be had.
CheckBackend = Callable[[ModelConfig], None]

# Bytes: far more than anybody writes. To parse as much takes half a minute.
LARGEST_CONFIG = 8 << 20

_log = logging.getLogger("trident.config")


@dataclass(slots=True)
class _Examination:
    """A configuration on its way: `failure` is the error, not a problem of the text, that stopped it.

    `completed`: it came as far as to be validated with its inputs and outputs. `signature` is that of the graph that
    it was completed from; None where nothing was missing. `path` is what stopped it.
    """

    config: ModelConfig
    path: Path
    versions: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    failure: ServerError | None = None
    completed: bool = False
    signature: ModelSignature | None = None

    @property
    def is_inspected(self) -> bool:
        """Whether the graph was looked at, so that the configuration is one version's."""
        return self.signature is not None or self.failure is not None


def load_config(
    directory: ModelDirectory,
    written: ModelConfig,
    *,
    auto_complete: bool = True,
    inspect: Inspect,
    gpu_ids: GpuIds = (),
    default_max_batch_size: int = 4,
    version: int | None = None,
) -> ModelConfig:
    """The complete, normalised and validated configuration of the model in `directory`; `written` stays as it is.

    `inspect` reads the graph in a version directory; it is called only where auto-complete needs it, for `version` or
    else for the highest that the version policy selects. Raises InvalidModelConfig with every problem, and what
    `inspect` raises.
    """
    examined = _examine(directory, copy_of(written), auto_complete, inspect, gpu_ids, default_max_batch_size, version)
    if examined.problems:
        raise InvalidModelConfig(examined.problems, model=directory.name)
    failure, examined.failure = examined.failure, None
    if failure is not None:
        try:
            raise failure
        finally:
            # It knows the frames that it goes through: known from one of them it would be a cycle that keeps what the
            # callers hold, the files of a load request among it, until the collector comes round.
            del failure
    return examined.config


def check_config(directory: ModelDirectory, written: ModelConfig, *, auto_complete: bool, gpu_ids: GpuIds) -> None:
    """Raise InvalidModelConfig for what is wrong with `written` whatever the graph is; it stays as it is.

    With auto-complete inputs and outputs are none of that, even where nothing is missing: what is wrong with them is
    the failure of a version, not of the model.
    """
    config = copy_of(written)
    fill_identity(config, directory.name, detection_files(directory))
    normalize(config, gpu_ids)
    problems = validate_model_config(config, directory.name, gpu_ids=gpu_ids, completed=not auto_complete)
    if problems:
        raise InvalidModelConfig(problems, model=directory.name)


def copy_of(config: ModelConfig) -> ModelConfig:
    copy = ModelConfig()
    copy.CopyFrom(config)
    return copy


def problems_of(
    directory: ModelDirectory,
    *,
    config_name: str = "",
    auto_complete: bool = True,
    inspect: Inspect,
    gpu_ids: GpuIds = (),
    default_max_batch_size: int = 4,
    check_backend: CheckBackend | None = None,
    run_golden: RunGolden | None = None,
) -> list[Problem]:
    """Every problem of the model in `directory`, files and graphs included; empty for a model that would load.

    Unlike `load_config` it inspects the graph of every selected version, from which that version is completed, and
    reads labels, warmup files and golden requests. The latter are run by `run_golden`, where nothing else is wrong;
    None runs none. `check_backend` judges each version's configuration once its graph is known; None judges nothing.
    """
    try:
        config = read_config(directory, config_name=config_name, required=not auto_complete)
    except InvalidModelConfig as error:
        return list(error.problems)
    except ServerError as error:
        return [_problem(str(directory.path), error)]

    def examine(version: int | None) -> _Examination:
        return _examine(directory, copy_of(config), auto_complete, inspect, gpu_ids, default_max_batch_size, version)

    latest = examine(None)
    if not latest.versions:
        return _config_problems(latest)
    found = dict.fromkeys(latest.versions, latest)
    if latest.is_inspected:
        found |= {version: examine(version) for version in latest.versions[:-1]}
    problems: list[Problem] = []
    for examined in found.values():
        problems += _config_problems(examined)
    right = {version: examined for version, examined in found.items() if not _config_problems(examined)}
    for version, examined in right.items():
        problems += _version_problems(directory, version, examined, inspect, check_backend)
    run = None if problems else run_golden
    for version, examined in right.items():
        problems += _golden_problems(directory, version, examined, run)
    # One that concerns several versions is named once.
    return list(dict.fromkeys(problems))


def read_config(directory: ModelDirectory, *, config_name: str = "", required: bool = False) -> ModelConfig:
    """The configuration as it is written; an empty one where no file is and none is `required`.

    Raises InvalidModelConfig, or ModelNotFound for a required one.
    """
    path = config_file(directory, config_name)
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
        content = _read_file(path)
    except OSError as error:
        message = f"failed to open text file for read {path}: {error.strerror}"
        raise InvalidModelConfig([Problem(str(path), message)], model=directory.name) from error
    config = parse_model_config(decode_config(content, str(path)), str(path))
    if directory.is_renamed:
        config.name = directory.name
    return config


def _read_file(path: Path) -> bytes:
    """Raises OSError, InvalidModelConfig for what is no file or too large for a configuration."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # to read a pipe could take for ever
        message = f"failed to open text file for read {path}: it is no regular file"
        raise InvalidModelConfig([Problem(str(path), message)])
    if found.st_size > LARGEST_CONFIG:
        message = (
            f"failed to read text proto from {path}: it has {found.st_size} bytes, a model configuration may have "
            f"{LARGEST_CONFIG}"
        )
        raise InvalidModelConfig([Problem(str(path), message)])
    return path.read_bytes()


def _examine(
    directory: ModelDirectory,
    config: ModelConfig,
    complete: bool,
    inspect: Inspect,
    gpu_ids: GpuIds,
    default_max_batch_size: int,
    version: int | None,
) -> _Examination:
    fill_identity(config, directory.name, detection_files(directory))
    normalize(config, gpu_ids)
    examined = _Examination(config, directory.path)
    try:
        examined.versions = select_versions(config, version_directories(directory), directory.name)
    except ConfigInvalid as error:
        missing_version = [_problem("version_policy", error)]
    else:
        missing_version = []
    if complete and not is_ensemble(config) and needs_signature(config):
        examined.problems = validate_model_config(config, directory.name, gpu_ids=gpu_ids, completed=False)
        examined.problems += missing_version
        if examined.problems:
            return examined
        examined.path = version_path(directory, examined.versions[-1] if version is None else version)
        try:
            examined.signature = inspect(examined.path, config)
            auto_complete(config, examined.signature, default_max_batch_size)
        except ServerError as error:
            examined.failure = error
            return examined
        normalize(config, gpu_ids)
    examined.problems = validate_model_config(config, directory.name, gpu_ids=gpu_ids) + missing_version
    examined.completed = True
    return examined


def _config_problems(examined: _Examination) -> list[Problem]:
    """What is wrong with an examined configuration; with inputs and outputs also where nothing came to look at them."""
    problems = list(examined.problems)
    if not examined.completed:
        problems += tensor_problems(examined.config, examined.config.name, completed=False)
    if examined.failure is not None:
        problems.append(_problem(str(examined.path), examined.failure))
    return problems


def _version_problems(
    directory: ModelDirectory, version: int, examined: _Examination, inspect: Inspect, check: CheckBackend | None
) -> list[Problem]:
    """What keeps a version from being loaded as it is configured, but for its golden requests."""
    config, path = examined.config, version_path(directory, version)
    problems: list[Problem] = []
    try:
        read_labels(directory, config)
    except ServerError as error:
        problems.append(_problem("output.label_filename", error))
    problems += warmup_problems(config, resolve_model_spec(config, version, {}), directory.path)
    try:
        signature = examined.signature or inspect(path, config)
    except ServerError as error:
        return [*problems, _problem(str(path), error)]
    problems += validate_against_signature(config, signature, directory.name)
    try:
        if check is not None:
            check(config)
    except ServerError as error:
        problems.append(_problem("optimization.execution_accelerators", error))
    return problems


def _golden_problems(
    directory: ModelDirectory, version: int, examined: _Examination, run: RunGolden | None
) -> list[Problem]:
    """The files' own mistakes are found even where `run` is None."""
    spec = resolve_model_spec(examined.config, version, {})
    try:
        golden = golden_requests(directory.path, spec, version)
    except InvalidModelConfig as error:
        return list(error.problems)
    if not golden or run is None:
        return []
    return list(run(version_path(directory, version), examined.config, spec, golden))


def _problem(path: str, error: ServerError) -> Problem:
    return Problem(path, error.message, error.hint or "")
