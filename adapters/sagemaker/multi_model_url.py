"""The checks of a load request: the model's name, and the url of its folder.

The url is `MODELS_ROOT/<name>/model[/<sub>]`. Triton refuses hyphens in it, although the platform's names may have
them. Here a component may be any file name. Source: docs/spec/sagemaker.md sections A5 and B2.
"""

from __future__ import annotations

import os
from pathlib import Path

from core.errors import InvalidRequest
from core.observability.log_text import escaped

LONGEST_NAME = 255
"""Bytes, the limit of file systems."""

_FOLDER = "model"
_SHOWN = 200


def check_name(name: str) -> None:
    """Check that a folder can have the name. Raises InvalidRequest."""
    problem = _component_problem(name)
    if problem:
        raise InvalidRequest(f"invalid model_name '{_shown(name)}': {problem}", hint="send the name as it was created")


def check_url(url: str, models_root: str) -> None:
    """Check that `url` names a model folder below `models_root`, without access to the disk. Raises InvalidRequest."""
    problem = _url_problem(url, models_root)
    if problem:
        form = f"{models_root.rstrip('/')}/<name>/{_FOLDER}"
        raise InvalidRequest(f"invalid url '{_shown(url)}': {problem}; it must be {form}", hint=f"send {form}")


def folder_of(url: str, models_root: str) -> Path:
    """The folder that `url` names, with its links resolved. Blocks on the disk.

    Raises InvalidRequest also if the folder does not exist, or if its links lead out of `models_root`: so no name
    reaches /dev, /proc, /sys or another part of the system.
    """
    check_url(url, models_root)
    try:
        root = Path(models_root).resolve(strict=True)
        folder = Path(url).resolve(strict=True)
    except FileNotFoundError:
        raise InvalidRequest(
            f"there is no folder '{_shown(url)}'", hint="the model's archive must be unpacked there before it is loaded"
        ) from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise InvalidRequest(f"cannot read '{_shown(url)}': {_reason(error)}") from error
    if not folder.is_relative_to(root):
        raise InvalidRequest(f"url '{_shown(url)}' leads out of {models_root}", hint="remove the symbolic link")
    if not folder.is_dir():
        raise InvalidRequest(f"'{_shown(url)}' is not a folder")
    return folder


def _url_problem(url: str, models_root: str) -> str:
    prefix = models_root.rstrip("/") + "/"
    if not url.startswith(prefix):
        return f"it does not begin with {prefix}"
    parts = url.removeprefix(prefix).removesuffix("/").split("/")
    for part in parts:
        problem = _component_problem(part)
        if problem:
            return problem
    if len(parts) not in (2, 3) or parts[1] != _FOLDER:
        return "it names no model folder"
    return ""


def _component_problem(name: str) -> str:
    """The reason why `name` cannot be one component of a path; "" if it can."""
    if not name.strip():
        return "a name must not be empty"
    if name in (os.curdir, os.pardir) or "/" in name or "\0" in name:
        return "a name must not lead to another folder"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "a name must be valid UTF-8"
    return f"a name has at most {LONGEST_NAME} bytes, not {size}" if size > LONGEST_NAME else ""


def _reason(error: OSError | RuntimeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "its links form a loop"


def _shown(text: str) -> str:
    return escaped(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
