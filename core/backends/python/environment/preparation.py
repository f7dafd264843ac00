"""Which environment a model runs in.

    EXECUTION_ENV_PATH      an archive of conda-pack, or a folder: an environment of conda, or a virtual environment
    requirements.txt        beside config.pbtxt: an environment of its own, installed once
    neither                 the server's

Source: docs/spec/python-backend.md section 4.5.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from core.backends.parameter_values import boolean
from core.backends.python.environment.activation import (
    activated_variables,
    is_virtual_environment,
    virtual_environment_variables,
)
from core.backends.python.environment.conda_archive import extracted
from core.backends.python.environment.environment_settings import EnvironmentSettings
from core.backends.python.environment.interpreter import check_interpreter, interpreter_of
from core.backends.python.environment.requirements import FILE_NAME, installed, is_installed
from core.backends.python.environment.stub_environment import StubEnvironment
from core.errors import ConfigInvalid, ModelLoadFailed, NotInstalled

PATH_PARAMETER = "EXECUTION_ENV_PATH"
INSTALL_PARAMETER = "INSTALL_REQUIREMENTS"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_YES_NO = {"yes": True, "no": False}


def prepare(model_directory: Path, parameters: Mapping[str, str], settings: EnvironmentSettings) -> StubEnvironment:
    """The environment of the model in `model_directory` with these `parameters`.

    Blocks, for minutes while it extracts or installs. Call it when a model is loaded, never for a request. Raises
    ModelLoadFailed, ConfigInvalid, RepositoryUnavailable.
    """
    text = parameters.get(PATH_PARAMETER, "")
    requirements = model_directory / FILE_NAME
    if text:
        return _checked(_given(_absolute(text, model_directory), settings))
    if requirements.is_file() and settings.install_requirements and _wants_install(parameters):
        if not settings.may_install and not is_installed(requirements, settings.cache):
            raise NotInstalled(
                f"'{requirements}' is not installed",
                hint="--backend-config=python,install-requirements=true installs it",
            )
        return _checked(_of_folder(installed(requirements, settings.cache, uv=shutil.which("uv"))))
    return StubEnvironment(sys.executable)


def _wants_install(parameters: Mapping[str, str]) -> bool:
    text = parameters.get(INSTALL_PARAMETER, "yes")
    wanted = _YES_NO.get(text.lower())
    try:
        return boolean(text) if wanted is None else wanted
    except ConfigInvalid as error:
        raise ConfigInvalid(f"Incorrect value for {INSTALL_PARAMETER}: {text}", hint="yes or no") from error


def _absolute(text: str, model_directory: Path) -> Path:
    path = Path(text.replace(_MODEL_DIRECTORY, str(model_directory), 1))
    if not path.is_absolute():
        raise ModelLoadFailed(
            f"{PATH_PARAMETER} '{text}' is not an absolute path",
            hint=f"write {_MODEL_DIRECTORY}/{text} for a path in the folder of the model",
        )
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ModelLoadFailed(f"Failed to get the canonical path for {path}.", hint=str(error)) from error


def _given(path: Path, settings: EnvironmentSettings) -> StubEnvironment:
    return _of_folder(path if path.is_dir() else extracted(path, settings.cache))


def _of_folder(folder: Path) -> StubEnvironment:
    if is_virtual_environment(folder):
        return StubEnvironment(interpreter_of(folder), virtual_environment_variables(folder))
    if not (folder / "bin" / "activate").is_file():
        raise ModelLoadFailed(
            f"Path {folder}/bin/activate does not exist. The Python environment should contain an 'activate' script."
        )
    return StubEnvironment(interpreter_of(folder), activated_variables(folder))


def _checked(environment: StubEnvironment) -> StubEnvironment:
    check_interpreter(environment)
    return environment
