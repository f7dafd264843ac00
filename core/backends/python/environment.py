"""The Python environment of a model, made when it is loaded.

    EXECUTION_ENV_PATH   an archive of conda-pack, or a folder: an environment of conda, or a virtual environment
    requirements.txt     beside config.pbtxt: an environment of its own, installed once for each interpreter and content
    neither              the server's

Source: docs/spec/python-backend.md section 4.5.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from lzma import LZMAError
from pathlib import Path

from trident.core.backends.model_files import boolean
from trident.core.config.problem import open_file, read_file
from trident.core.errors import ConfigInvalid, ModelLoadFailed, NotInstalled
from trident.core.repository.cache import free_bytes, lock_exclusive, make_private

CACHE_DIRECTORY = "environment-cache-directory"
INSTALL = "install-requirements"
# Use an earlier installation and install nothing.
CACHED = "cached"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """`cache` is the folder for extracted archives and installed requirements, made when it is first needed.
    `install_requirements`: the `requirements.txt` of models that have one counts; `may_install`: it is installed if it
    has not been yet.
    """

    cache: Path
    install_requirements: bool = True
    may_install: bool = True

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> EnvironmentSettings:
        cache = settings.get(CACHE_DIRECTORY) or f"{tempfile.gettempdir()}/trident-environments-{os.getuid()}"
        text = settings.get(INSTALL, "true")
        if text == CACHED:
            return cls(cache=Path(cache), may_install=False)
        return cls(cache=Path(cache), install_requirements=boolean(text))


@dataclass(frozen=True, slots=True)
class StubEnvironment:
    """`variables` are set beside those of the server; `interpreter` is an absolute path."""

    interpreter: str
    variables: Mapping[str, str] = field(default_factory=dict)


_LAST_LINES = 8
_LONGEST_LINE = 500


class ToolFailed(Exception):
    """The program could not be started, failed, or took too long. The text is its own last lines."""


def run_tool(
    command: Sequence[str], *, directory: Path | None = None, limit_s: float | None = None, keep: Sequence[int] = ()
) -> bytes:
    """Run `command`, without a shell, in `directory`, and return what it printed. Blocks.

    It gets the descriptors `keep`, and nothing to read. After `limit_s` seconds it and its children are killed. Raises
    ToolFailed.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=keep,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolFailed(f"cannot start '{command[0]}': {error.strerror or error}") from error
    with process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise ToolFailed(f"'{command[0]}' took longer than {limit_s:g} seconds") from None
    if process.returncode:
        raise ToolFailed(last_lines(errors) or last_lines(output) or f"'{command[0]}' ended with {process.returncode}")
    return output


def last_lines(text: bytes) -> str:
    lines = [line.rstrip()[:_LONGEST_LINE] for line in text.decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:])


# A virtual environment needs two, which are set here. The `bin/activate` of any other one, such as conda's, is read by
# bash, as in Triton: it sets PATH and CONDA_PREFIX and runs the scripts in `etc/conda/activate.d`, where packages set
# more. The path is an argument of bash, never a part of its command. Source: docs/spec/python-backend.md section 4.5,
# EXECUTION_ENV_PATH.


_LIMIT_S = 60.0
# The variables before and after the activation, each list ended by an empty one. What a script prints goes to stderr.
_PROGRAM = 'env -0 && printf "\\0" && . "$1" 1>&2 && exec env -0'
# A server that was itself started in an environment must not pass it on; BASH_ENV would be read by bash as well.
_UNSET = ("BASH_ENV", "ENV", "CONDA_PREFIX", "PYTHONHOME")
# Variables that bash and prompts change.
_OF_SHELLS = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "PS1", "_CONDA_PACK_OLD_PS1"})


def activated_variables(folder: Path) -> dict[str, str]:
    """Return the variables that `bin/activate` in `folder` sets or changes. Blocks. Raises ModelLoadFailed."""
    script = folder / "bin" / "activate"
    unset = [word for name in _UNSET for word in ("-u", name)]
    command = ["env", *unset, "bash", "--noprofile", "--norc", "-c", _PROGRAM, "trident", str(script)]
    try:
        printed = run_tool(command, limit_s=_LIMIT_S)
    except ToolFailed as error:
        raise ModelLoadFailed(f"failed to activate the environment '{folder}': {error}") from error
    old, new = (
        {name: value for name, _, value in (os.fsdecode(line).partition("=") for line in part.split(b"\0") if line)}
        for part in printed.split(b"\0\0", 1)
    )
    changed = {name: value for name, value in new.items() if name not in _OF_SHELLS and old.get(name) != value}
    return {"PYTHONHOME": "", **changed}


_NAMES = ("python", "python3")
_CHECK_LIMIT_S = 300.0
_CHECK_PROGRAM = """
import sys
if sys.version_info < (3, 9):
    sys.exit("it is Python %d.%d, and models need 3.9 or newer" % sys.version_info[:2])
import numpy
"""


def interpreter_of(folder: Path) -> str:
    """Return the path of the interpreter in an environment. Raises ModelLoadFailed."""
    for name in _NAMES:
        path = folder / "bin" / name
        if os.access(path, os.X_OK):
            return str(path)
    raise ModelLoadFailed(
        f"the Python environment '{folder}' has no interpreter",
        hint="bin/python must exist and be executable. A virtual environment cannot be moved to a machine that lacks "
        "the interpreter it was made with: make it there, or pack an environment of conda with conda-pack",
    )


_log = logging.getLogger("trident.backends.python")

# Bytes that stay free on the disk, for other programs.
_RESERVE = 64 << 20


def extracted(archive: Path, cache: Path, *, free: Callable[[Path], int] = free_bytes) -> Path:
    """The folder in `cache` with the content of `archive`, a tar file with any compression. Blocks while it extracts.

    Loads and servers that need the same archive at the same time extract it once. `free` is the number of bytes that
    can be written to the disk of a folder. Raises ModelLoadFailed, RepositoryUnavailable.
    """
    make_private(cache)
    try:
        status = archive.stat()
        key = f"{archive}\0{status.st_mtime_ns}\0{status.st_size}"
        folder = cache / f"archive-{hashlib.sha256(os.fsencode(key)).hexdigest()[:24]}"
        lock = lock_exclusive(folder.with_suffix(".lock"))
        try:
            if not folder.is_dir():
                _extract(archive, folder, free)
        finally:
            lock.release()
    except (OSError, EOFError, zlib.error, LZMAError, tarfile.TarError) as error:
        raise ModelLoadFailed(
            f"failed to extract the environment '{archive}': {error}",
            hint="EXECUTION_ENV_PATH is a .tar.gz file that conda-pack wrote, or a folder with an environment",
        ) from error
    return folder


def _extract(archive: Path, folder: Path, free: Callable[[Path], int]) -> None:
    _log.info("extracting the environment %s into %s", archive, folder)
    began = time.monotonic()
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with open_file(archive) as file, tarfile.open(fileobj=file, mode="r|*") as tar:
            # The filter refuses members that would leave the folder, links that lead out of it, and devices.
            tar.extractall(partial, members=_fitting(tar, partial.parent, free), filter="data")
        partial.mkdir(exist_ok=True)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _log.info("extracted the environment %s in %.1f s", archive, time.monotonic() - began)


def _fitting(tar: tarfile.TarFile, disk: Path, free: Callable[[Path], int]) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        left = free(disk) - _RESERVE
        if member.size > left:
            raise OSError(
                f"no space left on the disk of {disk}: '{member.name}' needs {member.size} bytes, "
                f"{max(0, left)} are free"
            )
        yield member


FILE_NAME = "requirements.txt"
_COMPLETE = ".complete"
_HINT = (
    "correct requirements.txt, make the packages available (PIP_INDEX_URL, PIP_FIND_LINKS), or "
    'switch the installation off with the model parameter INSTALL_REQUIREMENTS: "no"'
)


def installed(requirements: Path, cache: Path) -> Path:
    """The virtual environment in `cache` with the packages that `requirements` lists. Blocks while it installs.

    pip installs it with the server's interpreter. Loads and servers that need the same one at the same time share one
    installation. Raises ModelLoadFailed, RepositoryUnavailable.
    """
    make_private(cache)
    try:
        folder = _folder_of(requirements, cache)
        lock = lock_exclusive(folder.with_suffix(".lock"))
        try:
            if not (folder / _COMPLETE).exists():
                _install(requirements, folder, lock.fd)
        finally:
            lock.release()
    except ToolFailed as error:
        raise ModelLoadFailed(f"failed to install '{requirements}': {error}", hint=_HINT) from error
    except OSError as error:
        raise ModelLoadFailed(f"failed to install '{requirements}': {error}") from error
    return folder


def is_installed(requirements: Path, cache: Path) -> bool:
    try:
        return (_folder_of(requirements, cache) / _COMPLETE).exists()
    except OSError as error:
        raise ModelLoadFailed(f"failed to read '{requirements}': {error}") from error


def _folder_of(requirements: Path, cache: Path) -> Path:
    key = b"\0".join([os.fsencode(os.path.realpath(sys.executable)), sys.version.encode(), read_file(requirements)])
    return cache / f"requirements-{hashlib.sha256(key).hexdigest()[:24]}"


def _install(requirements: Path, folder: Path, lock: int) -> None:
    """The program gets the lock's descriptor: if the server is killed, the next one waits until the program ends."""
    began = time.monotonic()
    _log.info("installing %s into %s", requirements, folder)
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    try:
        run_tool([sys.executable, "-m", "venv", str(folder)], keep=[lock])
        run_tool([*pip, "install", "--quiet", "-r", str(requirements)], directory=requirements.parent, keep=[lock])
        (folder / _COMPLETE).touch()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _log.info("installed %s in %.1f s", requirements, time.monotonic() - began)


PATH_PARAMETER = "EXECUTION_ENV_PATH"
INSTALL_PARAMETER = "INSTALL_REQUIREMENTS"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_YES_NO = {"yes": True, "no": False}


def prepare(model_directory: Path, parameters: Mapping[str, str], settings: EnvironmentSettings) -> StubEnvironment:
    """Return the environment of the model in `model_directory` with these `parameters`.

    Blocks, for minutes while it extracts or installs. Call it when a model is loaded, never for a request. Raises
    ModelLoadFailed, ConfigInvalid, RepositoryUnavailable.
    """
    text = parameters.get(PATH_PARAMETER, "")
    requirements = model_directory / FILE_NAME
    if text:
        path = _absolute(text, model_directory)
        folder = path if path.is_dir() else extracted(path, settings.cache)
    elif requirements.is_file() and settings.install_requirements and _is_yes(parameters.get(INSTALL_PARAMETER, "yes")):
        if not settings.may_install and not is_installed(requirements, settings.cache):
            raise NotInstalled(
                f"'{requirements}' is not installed",
                hint="--backend-config=python,install-requirements=true installs it",
            )
        folder = installed(requirements, settings.cache)
    else:
        return StubEnvironment(sys.executable)
    environment = _of_folder(folder)
    variables = [f"{name}={value}" for name, value in environment.variables.items()]
    try:
        run_tool(["env", *variables, environment.interpreter, "-c", _CHECK_PROGRAM], limit_s=_CHECK_LIMIT_S)
    except ToolFailed as error:
        raise ModelLoadFailed(
            f"the Python environment of '{environment.interpreter}' cannot run models: {error}",
            hint="it needs Python 3.9 or newer with numpy: add numpy to requirements.txt, or install it there",
        ) from error
    return environment


def _is_yes(text: str) -> bool:
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


def _of_folder(folder: Path) -> StubEnvironment:
    if (folder / "pyvenv.cfg").is_file():
        path = os.pathsep.join([str(folder / "bin"), *os.get_exec_path()])
        variables = {"VIRTUAL_ENV": str(folder), "PATH": path, "PYTHONHOME": ""}  # as its `bin/activate` sets them
        return StubEnvironment(interpreter_of(folder), variables)
    if not (folder / "bin" / "activate").is_file():
        raise ModelLoadFailed(
            f"Path {folder}/bin/activate does not exist. The Python environment should contain an 'activate' script."
        )
    return StubEnvironment(interpreter_of(folder), activated_variables(folder))
