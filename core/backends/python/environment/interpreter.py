"""The interpreter of an environment, and what it must be able to do."""

from __future__ import annotations

import os
from pathlib import Path

from core.backends.python.environment.stub_environment import StubEnvironment
from core.backends.python.environment.tool_run import ToolFailed, run_tool
from core.errors import ModelLoadFailed

_NAMES = ("python", "python3")
_LIMIT_S = 300.0
_PROGRAM = """
import sys
if sys.version_info < (3, 9):
    sys.exit("it is Python %d.%d, and models need 3.9 or newer" % sys.version_info[:2])
import numpy
"""


def interpreter_of(folder: Path) -> str:
    """The path of the interpreter in an environment. Raises ModelLoadFailed."""
    for name in _NAMES:
        path = folder / "bin" / name
        if os.access(path, os.X_OK):
            return str(path)
    raise ModelLoadFailed(
        f"the Python environment '{folder}' has no interpreter",
        hint="bin/python must exist and be executable. A virtual environment cannot be moved to a machine that lacks "
        "the interpreter it was made with: make it there, or pack an environment of conda with conda-pack",
    )


def check_interpreter(environment: StubEnvironment) -> None:
    """Start the interpreter and import numpy. Blocks. Raises ModelLoadFailed if models cannot run in it."""
    variables = [f"{name}={value}" for name, value in environment.variables.items()]
    try:
        run_tool(["env", *variables, environment.interpreter, "-c", _PROGRAM], limit_s=_LIMIT_S)
    except ToolFailed as error:
        raise ModelLoadFailed(
            f"the Python environment of '{environment.interpreter}' cannot run models: {error}",
            hint="it needs Python 3.9 or newer with numpy: add numpy to requirements.txt, or install it there",
        ) from error
