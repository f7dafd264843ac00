"""Which environment a model gets, and why it gets none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.core.backends.python.environment.environment_parts import (
    FAKE_NUMPY,
    archive_of,
    conda_folder,
    virtual_environment,
)
from trident.core.backends.python.environment import EnvironmentSettings, StubEnvironment, prepare
from trident.core.errors import ConfigInvalid, ModelLoadFailed, NotInstalled

Prepare = Callable[..., StubEnvironment]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "m"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> EnvironmentSettings:
    return EnvironmentSettings(cache=tmp_path / "cache")


def run(environment: StubEnvironment, program: str) -> str:
    variables = [f"{name}={value}" for name, value in environment.variables.items()]
    command = ["env", *variables, environment.interpreter, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def path_of(text: object) -> dict[str, str]:
    return {"EXECUTION_ENV_PATH": str(text)}


def test_without_a_parameter_a_model_runs_in_the_environment_of_the_server(
    model: Path, settings: EnvironmentSettings
) -> None:
    assert prepare(model, {}, settings) == StubEnvironment(sys.executable)
    assert not settings.cache.exists()


def test_a_virtual_environment(model: Path, settings: EnvironmentSettings, tmp_path: Path) -> None:
    folder = virtual_environment(tmp_path / "an environment")
    environment = prepare(model, path_of(folder), settings)
    assert environment.interpreter == str(folder / "bin" / "python")
    assert run(environment, "import numpy; print(numpy.__version__)") == FAKE_NUMPY
    assert run(environment, "import os, shutil; print(os.environ['VIRTUAL_ENV'], shutil.which('python'))") == (
        f"{folder} {folder}/bin/python"
    )


# The path must reach bash as it is, whatever it contains.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["env", "two words", '"; touch stolen; "', "$(touch stolen)", "`touch stolen`", "-e"])
def test_a_folder_of_conda_is_activated(
    model: Path, settings: EnvironmentSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONDA_PREFIX", "/another")
    folder = conda_folder(tmp_path / "envs" / name)
    environment = prepare(model, path_of(folder), settings)
    assert environment.interpreter == str(folder / "bin" / "python")
    assert environment.variables["CONDA_PREFIX"] == str(folder)
    assert environment.variables["PACKAGE_HOME"] == f"{folder}/share/two  words"
    assert environment.variables["PATH"].startswith(f"{folder}/bin:")
    assert set(environment.variables) == {"CONDA_PREFIX", "PACKAGE_HOME", "PATH", "PYTHONHOME"}
    assert not (tmp_path / "stolen").exists()
    assert run(environment, "import os; print(os.environ['CONDA_PREFIX'])") == str(folder)


@pytest.mark.slow
def test_an_archive_beside_the_model(model: Path, settings: EnvironmentSettings, tmp_path: Path) -> None:
    archive_of(conda_folder(tmp_path / "made"), model / "env.tar.gz")
    environment = prepare(model, path_of("$$TRITON_MODEL_DIRECTORY/env.tar.gz"), settings)
    folder = Path(environment.variables["CONDA_PREFIX"])
    assert folder.parent == settings.cache
    assert environment.variables["PACKAGE_HOME"] == f"{folder}/share/two  words"
    assert prepare(model, path_of(model / "env.tar.gz"), settings) == environment


def test_an_activation_that_fails_ends_the_load_with_its_last_lines(
    model: Path, settings: EnvironmentSettings, tmp_path: Path
) -> None:
    folder = conda_folder(tmp_path / "env")
    (folder / "bin" / "activate").write_text("echo the driver is missing >&2\nreturn 3\n")
    with pytest.raises(ModelLoadFailed, match=f"failed to activate the environment '{folder}': the driver is missing"):
        prepare(model, path_of(folder), settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/no/such/place", "Failed to get the canonical path for /no/such/place."),
        ("envs/mine", "EXECUTION_ENV_PATH 'envs/mine' is not an absolute path"),
        (
            "$$TRITON_MODEL_DIRECTORY",
            "Path {model}/bin/activate does not exist. The Python environment should contain an 'activate' script.",
        ),
    ],
)
def test_a_path_without_an_environment_is_refused(
    model: Path, settings: EnvironmentSettings, text: str, message: str
) -> None:
    with pytest.raises(ModelLoadFailed) as raised:
        prepare(model, path_of(text), settings)
    assert raised.value.message == message.format(model=model)


def test_an_environment_without_an_interpreter_is_refused(
    model: Path, settings: EnvironmentSettings, tmp_path: Path
) -> None:
    folder = conda_folder(tmp_path / "env")
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to("/gone/python3.8")
    with pytest.raises(ModelLoadFailed, match="has no interpreter"):
        prepare(model, path_of(folder), settings)


def test_an_environment_without_numpy_is_refused_with_the_cure(
    model: Path, settings: EnvironmentSettings, tmp_path: Path
) -> None:
    folder = virtual_environment(tmp_path / "env", numpy=False)
    with pytest.raises(ModelLoadFailed) as raised:
        prepare(model, path_of(folder), settings)
    assert "cannot run models" in raised.value.message
    assert raised.value.message.endswith("ModuleNotFoundError: No module named 'numpy'")
    assert "add numpy to requirements.txt" in (raised.value.hint or "")


@pytest.mark.parametrize("value", ["no", "NO", "false", "0"])
def test_requirements_are_not_installed_if_the_model_says_so(
    model: Path, settings: EnvironmentSettings, value: str
) -> None:
    (model / "requirements.txt").write_text("ghost\n")
    assert prepare(model, {"INSTALL_REQUIREMENTS": value}, settings) == StubEnvironment(sys.executable)


def test_requirements_are_not_installed_if_the_server_says_so(model: Path, tmp_path: Path) -> None:
    (model / "requirements.txt").write_text("ghost\n")
    settings = EnvironmentSettings.read(
        {"install-requirements": "false", "environment-cache-directory": str(tmp_path / "cache")}
    )
    assert prepare(model, {}, settings) == StubEnvironment(sys.executable)


def test_requirements_that_are_not_installed_yet_may_be_left_so(model: Path, tmp_path: Path) -> None:
    (model / "requirements.txt").write_text("ghost\n")
    settings = EnvironmentSettings.read(
        {"install-requirements": "cached", "environment-cache-directory": str(tmp_path / "cache")}
    )
    with pytest.raises(NotInstalled, match=r"requirements\.txt' is not installed"):
        prepare(model, {}, settings)
    assert not (tmp_path / "cache").exists()
    assert prepare(model, {"INSTALL_REQUIREMENTS": "no"}, settings) == StubEnvironment(sys.executable)


def test_a_value_that_is_neither_yes_nor_no_is_refused(model: Path, settings: EnvironmentSettings) -> None:
    (model / "requirements.txt").write_text("ghost\n")
    with pytest.raises(ConfigInvalid, match="Incorrect value for INSTALL_REQUIREMENTS: perhaps"):
        prepare(model, {"INSTALL_REQUIREMENTS": "perhaps"}, settings)
