"""What the options of the emulators of all platforms share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from trident.adapters.common.options import BadValue, Kind, Option

# -P keeps a folder `app` in the working directory from being imported.
CONTAINER_COMMAND = (sys.executable, "-P", "-m", "trident.app")


def _variable(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise BadValue(f"--env takes NAME=VALUE, not '{text}'")
    return text


VARIABLE = Kind("NAME=VALUE", _variable)


def own_option(flag: str, kind: Kind[Any], default: Any, help: str) -> Option:
    """An option of an emulator; it is repeatable if its default is ()."""
    return Option.of_command(flag, kind, default, help, repeatable=default == ())


def variables_of(texts: Sequence[str]) -> dict[str, str]:
    """The values by name of texts of kind `VARIABLE`."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before `--`, and those after it, which are the container's."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:end]), list(arguments[end + 1 :])
