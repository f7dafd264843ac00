"""`trident completion SHELL`: prints the script by which a shell completes command lines of `trident`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from app.commands.completion.bash import bash_script
from app.commands.completion.fish import fish_script
from app.commands.completion.subcommands import SHELLS
from app.commands.completion.zsh import zsh_script
from app.settings.option import BadOption

_SCRIPTS: dict[str, Callable[[], str]] = dict(zip(SHELLS, (bash_script, zsh_script, fish_script), strict=True))


def completion(arguments: Sequence[str]) -> int:
    """Print the script for the shell that is the only argument. Raises BadOption."""
    if len(arguments) != 1 or arguments[0] not in _SCRIPTS:
        raise BadOption(f"a shell must be named: trident completion {'|'.join(SHELLS)}")
    sys.stdout.write(_SCRIPTS[arguments[0]]())
    return 0
