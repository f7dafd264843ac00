"""Environments from requirements.txt, installed by the real pip from wheels in a folder."""

from __future__ import annotations

import logging
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.core.backends.python.environment.environment_parts import FAKE_NUMPY, wheel
from trident.core.backends.python.environment import EnvironmentSettings, installed, prepare
from trident.core.errors import ModelLoadFailed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "numpy", FAKE_NUMPY)
    wheel(folder, "tiny", "1.2")
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> EnvironmentSettings:
    return EnvironmentSettings(cache=tmp_path / "cache")


def model_with(folder: Path, *lines: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in ("--no-index", *lines)))
    return folder


def test_loads_at_the_same_time_share_one_installation(
    tmp_path: Path, settings: EnvironmentSettings, wheels: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    models = [model_with(tmp_path / name, f"--find-links {wheels}", "tiny==1.2", "numpy") for name in ("a", "b")]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda model: prepare(model, {}, settings), models)
    assert first == second
    assert len([line for line in caplog.messages if line.startswith("installing")]) == 1
    program = "import tiny, numpy; print(tiny.__version__, numpy.__version__)"
    printed = subprocess.run([first.interpreter, "-c", program], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == f"1.2 {FAKE_NUMPY}"
    assert Path(first.variables["VIRTUAL_ENV"]).parent == settings.cache


def test_a_package_that_cannot_be_had_ends_the_load_with_the_words_of_pip(
    tmp_path: Path, settings: EnvironmentSettings, wheels: Path
) -> None:
    model = model_with(tmp_path / "m", f"--find-links {wheels}", "ghost>=2")
    with pytest.raises(ModelLoadFailed) as raised:
        prepare(model, {}, settings)
    assert "No matching distribution found for ghost>=2" in raised.value.message
    assert 'INSTALL_REQUIREMENTS: "no"' in (raised.value.hint or "")
    assert [entry for entry in settings.cache.iterdir() if entry.is_dir()] == []


def test_pip_installs_from_where_it_was_told(
    tmp_path: Path, settings: EnvironmentSettings, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    model = model_with(tmp_path / "m", "tiny")
    folder = installed(model / "requirements.txt", settings.cache, uv="/no/such/uv")
    assert list(folder.glob("lib/python*/site-packages/tiny.py"))


def test_a_program_that_cannot_be_started_ends_the_load(
    tmp_path: Path, settings: EnvironmentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    model = model_with(tmp_path / "m", "tiny")
    with pytest.raises(ModelLoadFailed, match="cannot start '/no/such/uv': No such file or directory"):
        installed(model / "requirements.txt", settings.cache, uv="/no/such/uv")
