"""The Python environment of a model: an archive of conda, a virtual environment, or installed requirements."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.backend_serving import config_of, parameter
from trident.core.backends.python.backend import PythonBackend, PythonSettings, may_complete
from trident.core.backends.python.environment import EnvironmentSettings, StubEnvironment, extracted, prepare
from trident.core.backends.python.process import ModelLimits
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, ModelLoadFailed, NotInstalled, RepositoryUnavailable, ServerError

pytestmark = pytest.mark.slow

# As conda-pack's script finds its folder and runs the scripts of packages.
_ACTIVATE = """\
folder="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export CONDA_PREFIX="$folder"
PATH="$folder/bin:$PATH"
for script in "$folder"/etc/conda/activate.d/*.sh; do . "$script"; done
echo "activated"
"""
FAKE_NUMPY = "99.0"
"""The version of the numpy that these environments have: a module that only has a version."""


def conda_folder(folder: Path) -> Path:
    """An environment with a `bin/activate` as conda-pack writes it. Its interpreter is the one of the test."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "activate").write_text(_ACTIVATE)
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    scripts = folder / "etc" / "conda" / "activate.d"
    scripts.mkdir(parents=True)
    (scripts / "package.sh").write_text('export PACKAGE_HOME="$CONDA_PREFIX/share/two  words"\n')
    return folder


def archive_of(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in sorted(folder.iterdir()):
            tar.add(member, member.name)
    return path


def wheel(folder: Path, name: str, version: str) -> Path:
    """A package with one module, as pip installs it."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f'__version__ = "{version}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in files))
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return archive_of(conda_folder(tmp_path / "made"), tmp_path / "env.tar.gz")


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info


def archive_with(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for each in members:
            tar.addfile(each, io.BytesIO(b"x" * each.size))
    return path


def folders(cache: Path) -> list[str]:
    return sorted(entry.name for entry in cache.iterdir() if entry.is_dir())


def test_archive_is_extracted_with_its_modes_and_links(tmp_path: Path, cache: Path) -> None:
    made = conda_folder(tmp_path / "made")
    (made / "bin" / "python3").symlink_to("python")
    folder = extracted(archive_of(made, tmp_path / "env.tar.gz"), cache)
    assert os.access(folder / "bin" / "python", os.X_OK)
    assert (folder / "bin" / "python3").resolve() == folder / "bin" / "python"
    assert (folder / "bin" / "activate").read_text() == (made / "bin" / "activate").read_text()


def test_loads_at_the_same_time_extract_once(archive: Path, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: extracted(archive, cache), range(4)))
    (folder,) = found
    assert folders(cache) == [folder.name]
    (folder / "mark").touch()
    assert (extracted(archive, cache) / "mark").exists()


def test_changed_archive_is_extracted_again(archive: Path, cache: Path) -> None:
    first = extracted(archive, cache)
    later = archive.stat().st_mtime_ns + 1_000_000_000
    os.utime(archive, ns=(later, later))
    assert extracted(archive, cache) != first


@pytest.mark.parametrize(
    "members",
    [
        [member("../stolen", size=1)],
        [member("bin/../../stolen", size=1)],
        [member("link", tarfile.SYMTYPE, "../.."), member("link/stolen", size=1)],
        [member("link", tarfile.SYMTYPE, "/etc/passwd")],
        [member("link", tarfile.LNKTYPE, "../../secret")],
        [member("disk", tarfile.BLKTYPE)],
        [member("pipe", tarfile.FIFOTYPE)],
    ],
    ids=lambda members: members[0].name,
)
def test_archive_member_outside_the_folder_is_refused(
    tmp_path: Path, cache: Path, members: list[tarfile.TarInfo]
) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(ModelLoadFailed, match="failed to extract the environment"):
        extracted(archive_with(tmp_path / "evil.tar.gz", member("bin/activate", size=1), *members), cache)
    assert not list(tmp_path.rglob("stolen"))
    assert folders(cache) == []


def test_absolute_archive_member_is_extracted_into_the_folder(tmp_path: Path, cache: Path) -> None:
    target = tmp_path / "elsewhere" / "stolen"
    folder = extracted(archive_with(tmp_path / "evil.tar.gz", member(str(target), size=1)), cache)
    assert not target.exists()
    assert (folder / str(target).lstrip("/")).read_text() == "x"


def test_full_disk_aborts_the_extraction(tmp_path: Path, cache: Path) -> None:
    rooms = iter([1 << 30, (64 << 20) + 5])
    archive = archive_with(tmp_path / "large.tar.gz", member("first", size=100), member("second", size=6))
    with pytest.raises(ModelLoadFailed, match=r"no space left on the disk of .*: 'second' needs 6 bytes, 5 are free"):
        extracted(archive, cache, free=lambda folder: next(rooms))
    assert folders(cache) == []


def test_world_writable_cache_is_refused(archive: Path, cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(RepositoryUnavailable, match="others can write to"):
        extracted(archive, cache)


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
    assert first.variables["PYTHONHOME"] == ""  # that of the server is not passed on


def test_missing_package_fails_the_load_with_pips_message(
    tmp_path: Path, settings: EnvironmentSettings, wheels: Path
) -> None:
    model = model_with(tmp_path / "m", f"--find-links {wheels}", "ghost>=2")
    with pytest.raises(ModelLoadFailed) as raised:
        prepare(model, {}, settings)
    assert "No matching distribution found for ghost>=2" in raised.value.message
    assert 'INSTALL_REQUIREMENTS: "no"' in (raised.value.hint or "")
    assert [entry for entry in settings.cache.iterdir() if entry.is_dir()] == []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "m"
    folder.mkdir(parents=True)
    return folder


def run(environment: StubEnvironment, program: str) -> str:
    variables = [f"{name}={value}" for name, value in environment.variables.items()]
    command = ["env", *variables, environment.interpreter, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


Prepared = Callable[[object], StubEnvironment]


@pytest.fixture
def prepared(model: Path, settings: EnvironmentSettings) -> Prepared:
    """Prepares the environment of a model that names a path."""
    return lambda path: prepare(model, {"EXECUTION_ENV_PATH": str(path)}, settings)


# The path must reach bash as it is, whatever it contains.
@pytest.mark.parametrize("name", ["two words", "$(touch stolen)", "-e"])
def test_folder_of_conda_is_activated(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONDA_PREFIX", "/another")
    folder = conda_folder(tmp_path / "envs" / name)
    environment = prepared(folder)
    assert environment.interpreter == str(folder / "bin" / "python")
    assert environment.variables["CONDA_PREFIX"] == str(folder)
    assert environment.variables["PACKAGE_HOME"] == f"{folder}/share/two  words"
    assert environment.variables["PATH"].startswith(f"{folder}/bin:")
    assert set(environment.variables) == {"CONDA_PREFIX", "PACKAGE_HOME", "PATH", "PYTHONHOME"}
    assert not (tmp_path / "stolen").exists()
    assert run(environment, "import os; print(os.environ['CONDA_PREFIX'])") == str(folder)


def test_archive_beside_the_model_is_extracted(
    model: Path, prepared: Prepared, settings: EnvironmentSettings, tmp_path: Path
) -> None:
    archive_of(conda_folder(tmp_path / "made"), model / "env.tar.gz")
    environment = prepared("$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    folder = Path(environment.variables["CONDA_PREFIX"])
    assert folder.parent == settings.cache
    assert environment.variables["PACKAGE_HOME"] == f"{folder}/share/two  words"
    assert prepared(model / "env.tar.gz") == environment


def test_activation_that_fails_ends_the_load_with_its_last_lines(prepared: Prepared, tmp_path: Path) -> None:
    folder = conda_folder(tmp_path / "env")
    (folder / "bin" / "activate").write_text("echo the driver is missing >&2\nreturn 3\n")
    with pytest.raises(ModelLoadFailed, match=f"failed to activate the environment '{folder}': the driver is missing"):
        prepared(folder)


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
def test_path_without_an_environment_is_refused(model: Path, prepared: Prepared, text: str, message: str) -> None:
    with pytest.raises(ModelLoadFailed) as raised:
        prepared(text)
    assert raised.value.message == message.format(model=model)


def test_environment_without_an_interpreter_is_refused(prepared: Prepared, tmp_path: Path) -> None:
    folder = conda_folder(tmp_path / "env")
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to("/gone/python3.8")
    with pytest.raises(ModelLoadFailed, match="has no interpreter"):
        prepared(folder)


def test_environment_without_numpy_is_refused_with_the_cure(prepared: Prepared, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    with pytest.raises(ModelLoadFailed) as raised:
        prepared(folder)
    assert "cannot run models" in raised.value.message
    assert raised.value.message.endswith("ModuleNotFoundError: No module named 'numpy'")
    assert "add numpy to requirements.txt" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("parameters", "setting"),
    [
        ({"INSTALL_REQUIREMENTS": "NO"}, "true"),
        ({"INSTALL_REQUIREMENTS": "0"}, "true"),
        ({"INSTALL_REQUIREMENTS": "no"}, "cached"),
        ({}, "false"),
    ],
)
def test_requirements_are_not_installed_if_disabled(
    model: Path, cache: Path, parameters: dict[str, str], setting: str
) -> None:
    (model / "requirements.txt").write_text("ghost\n")
    settings = EnvironmentSettings.read({"install-requirements": setting, "environment-cache-directory": str(cache)})
    assert prepare(model, parameters, settings) == StubEnvironment(sys.executable)


@pytest.mark.parametrize(
    ("answer", "setting", "error", "text"),
    [
        ("yes", "cached", NotInstalled, r"requirements\.txt' is not installed"),
        ("perhaps", "true", ConfigInvalid, "Incorrect value for INSTALL_REQUIREMENTS: perhaps"),
    ],
)
def test_requirements_of_a_model_without_permission_are_reported(
    model: Path, cache: Path, answer: str, setting: str, error: type[ServerError], text: str
) -> None:
    (model / "requirements.txt").write_text("ghost\n")
    settings = EnvironmentSettings.read({"install-requirements": setting, "environment-cache-directory": str(cache)})
    with pytest.raises(error, match=text):
        prepare(model, {"INSTALL_REQUIREMENTS": answer}, settings)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("stub-timeout-seconds", "0", "stub-timeout-seconds can't be smaller than or equal to zero"),
        ("stub-timeout-seconds", "soon", "failed to convert 'soon' to integral number"),
        ("shared-memory-byte-size", "1000", "shared-memory-byte-size is 1000, which is not between"),
    ],
)
def test_invalid_settings_are_refused(name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        PythonSettings.read({name: value})


def test_model_has_no_limits_unless_it_sets_them() -> None:
    assert ModelLimits.read({"EXECUTION_ENV_PATH": "/env"}) == ModelLimits(None, None)
    both = {"EXECUTION_LIMIT_SECONDS": "2.5", "MEMORY_LIMIT_BYTES": "1000000"}
    assert ModelLimits.read(both) == ModelLimits(2.5, 1_000_000)


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "nan", "inf"])
@pytest.mark.parametrize("name", ["EXECUTION_LIMIT_SECONDS", "MEMORY_LIMIT_BYTES"])
def test_limit_is_a_number_above_zero(name: str, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"parameter '{name}' must be a number above 0, not '{text}'"):
        ModelLimits.read({name: text})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class TritonPythonModel:\n    pass\n", False),
        ("import numpy\n\n\nclass TritonPythonModel(object):\n    pass\n", False),
        ("class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config): ...\n", True),
        ("from base import Base\n\nclass TritonPythonModel(Base):\n    pass\n", True),
        ("from base import TritonPythonModel\n", True),
        ("# class TritonPythonModel:\n", True),
    ],
)
def test_process_runs_auto_complete_only_where_the_model_may_define_it(
    source: str, expected: bool, tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(source)
    assert may_complete(file) is expected


def check_and_complete(version: Path, config: ModelConfig) -> None:
    PythonBackend().check(config)
    PythonBackend().complete(version, config)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('default_model_filename: "other.py"', "Python model file not found in '"),
        ('default_model_filename: "model.txt"', r"""Model name must end with '\.py'. Model name is "model.txt"."""),
        (parameter("EXECUTION_LIMIT_SECONDS", "soon"), "must be a number above 0"),
        (parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe"), "Incorrect value for "),
    ],
)
def test_invalid_configuration_of_a_python_model_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    config = config_of(text, backend="python")
    config.default_model_filename = config.default_model_filename or "model.py"
    with pytest.raises(ServerError, match=reason):
        check_and_complete(tmp_path, config)
