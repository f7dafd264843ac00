"""A run of a program that prepares an environment: pip, uv, bash, or the environment's interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

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
    """The last lines that are not empty, each cut to a length that a log can show."""
    lines = [line.rstrip()[:_LONGEST_LINE] for line in text.decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:])
