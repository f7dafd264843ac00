"""Requirements that `make test` does not install: the tests that need them are skipped without them.

`.ci/run` installs it, and runs the skipped tests with ALL_INSTALLED=1, so that none is skipped unseen.
"""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from typing import Any, NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test, or the module that is being imported; fail where all is installed."""
    __tracebackhide__ = True
    if os.environ.get("ALL_INSTALLED"):
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)


def program(name: str, installation: str) -> str:
    """The path of a program; `installation` is the command that installs it."""
    __tracebackhide__ = True
    return shutil.which(name) or missing(f"{name} is not installed: {installation}")


def package(name: str, installation: str = "") -> Any:
    """A package of Python, or one whose library of the system may be missing, which `installation` installs."""
    __tracebackhide__ = True
    try:
        return import_module(name)
    except (ModuleNotFoundError, OSError) as error:
        missing(f"{name} is not installed ({error}): {installation or f'pip install {name}'}")


def lightgbm() -> Any:
    __tracebackhide__ = True
    return package("lightgbm", "apt install libgomp1")
