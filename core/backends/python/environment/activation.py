"""The variables of an activated environment.

A virtual environment needs two, which are set here. The `bin/activate` of any other one, such as conda's, is read by
bash, as in Triton: it sets PATH and CONDA_PREFIX and runs the scripts in `etc/conda/activate.d`, where packages set
more. The path is an argument of bash, never a part of its command.
Source: docs/spec/python-backend.md section 4.5, EXECUTION_ENV_PATH.
"""

from __future__ import annotations

import os
from pathlib import Path

from core.backends.python.environment.tool_run import ToolFailed, run_tool
from core.errors import ModelLoadFailed

_LIMIT_S = 60.0
# The variables before and after the activation, each list ended by an empty one. What a script prints goes to stderr.
_PROGRAM = 'env -0 && printf "\\0" && . "$1" 1>&2 && exec env -0'
# A server that was itself started in an environment must not pass it on; BASH_ENV would be read by bash as well.
_UNSET = ("BASH_ENV", "ENV", "CONDA_PREFIX", "PYTHONHOME")
# What bash and prompts change.
_OF_SHELLS = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "PS1", "_CONDA_PACK_OLD_PS1"})


def is_virtual_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file()


def virtual_environment_variables(folder: Path) -> dict[str, str]:
    """What `bin/activate` of a virtual environment sets."""
    path = os.pathsep.join([str(folder / "bin"), *os.get_exec_path()])
    return {"VIRTUAL_ENV": str(folder), "PATH": path, "PYTHONHOME": ""}


def activated_variables(folder: Path) -> dict[str, str]:
    """The variables that `bin/activate` in `folder` sets or changes. Blocks. Raises ModelLoadFailed."""
    script = folder / "bin" / "activate"
    unset = [word for name in _UNSET for word in ("-u", name)]
    command = ["env", *unset, "bash", "--noprofile", "--norc", "-c", _PROGRAM, "trident", str(script)]
    try:
        printed = run_tool(command, limit_s=_LIMIT_S)
    except ToolFailed as error:
        raise ModelLoadFailed(f"failed to activate the environment '{folder}': {error}") from error
    before, _, after = printed.partition(b"\0\0")
    old, new = _parsed(before), _parsed(after)
    changed = {name: value for name, value in new.items() if name not in _OF_SHELLS and old.get(name) != value}
    return {"PYTHONHOME": "", **changed}


def _parsed(variables: bytes) -> dict[str, str]:
    pairs = (os.fsdecode(line).partition("=") for line in variables.split(b"\0") if line)
    return {name: value for name, _, value in pairs}
