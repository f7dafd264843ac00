"""The environment for a `requirements.txt`: made once for each interpreter and content, and kept for the next start."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import time
from pathlib import Path

from core.backends.python.environment.tool_run import ToolFailed, run_tool
from core.errors import ModelLoadFailed
from core.repository.cache.file_lock import lock_exclusive
from core.repository.cache.private_folder import make_private

_log = logging.getLogger("trident.backends.python")

FILE_NAME = "requirements.txt"
_COMPLETE = ".complete"
_SOURCES = frozenset({"index-url", "extra-index-url", "find-links", "no-index"})
_HINT = (
    "correct requirements.txt, make the packages available (PIP_INDEX_URL, PIP_FIND_LINKS; UV_INDEX_URL with uv), or "
    'switch the installation off with the model parameter INSTALL_REQUIREMENTS: "no"'
)


def installed(requirements: Path, cache: Path, *, uv: str | None = None) -> Path:
    """The virtual environment in `cache` with the packages that `requirements` lists. Blocks while it installs.

    It is installed with the server's interpreter: by the program `uv` if given, unless pip was told where packages come
    from, which uv does not heed; otherwise by pip. Loads and servers that need the same one at the same time share one
    installation. Raises ModelLoadFailed, RepositoryUnavailable.
    """
    make_private(cache)
    try:
        folder = _folder_of(requirements, cache)
        lock = lock_exclusive(folder.with_suffix(".lock"))
        try:
            if not (folder / _COMPLETE).exists():
                _install(requirements, folder, uv, lock.fd)
        finally:
            lock.release()
    except ToolFailed as error:
        raise ModelLoadFailed(f"failed to install '{requirements}': {error}", hint=_HINT) from error
    except OSError as error:
        raise ModelLoadFailed(f"failed to install '{requirements}': {error}") from error
    return folder


def is_installed(requirements: Path, cache: Path) -> bool:
    """Whether `installed` has nothing left to do. Raises ModelLoadFailed."""
    try:
        return (_folder_of(requirements, cache) / _COMPLETE).exists()
    except OSError as error:
        raise ModelLoadFailed(f"failed to read '{requirements}': {error}") from error


def _folder_of(requirements: Path, cache: Path) -> Path:
    key = b"\0".join([os.fsencode(os.path.realpath(sys.executable)), sys.version.encode(), requirements.read_bytes()])
    return cache / f"requirements-{hashlib.sha256(key).hexdigest()[:24]}"


def _install(requirements: Path, folder: Path, uv: str | None, lock: int) -> None:
    """The program gets the lock's descriptor: if the server is killed, the next one waits until the program ends."""
    began = time.monotonic()
    if uv and _pip_has_sources():
        uv = None
    _log.info("installing %s into %s with %s", requirements, folder, "uv" if uv else "pip")
    shutil.rmtree(folder, ignore_errors=True)
    python = str(folder / "bin" / "python")
    if uv:
        steps = [
            [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", python, "-r", str(requirements)],
        ]
    else:
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        steps = [
            [sys.executable, "-m", "venv", str(folder)],
            [*pip, "install", "--quiet", "-r", str(requirements)],
        ]
    try:
        for step in steps:
            run_tool(step, directory=requirements.parent, keep=[lock])
        (folder / _COMPLETE).touch()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _log.info("installed %s in %.1f s", requirements, time.monotonic() - began)


def _pip_has_sources() -> bool:
    """Whether a variable or a file of pip says where packages come from."""
    try:
        settings = run_tool([sys.executable, "-m", "pip", "config", "list"]).decode(errors="replace")
    except ToolFailed:  # the server's environment has no pip
        return False
    names = {line.partition("=")[0].strip(" '").rpartition(".")[2] for line in settings.splitlines()}
    return not names.isdisjoint(_SOURCES)
