"""A program as the leader of a session of its own: all that it starts is found again by that, and can be ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRIDENT = str(Path(sys.executable).with_name("trident"))


def start_session(command: Sequence[str], log: Path, **more: Any) -> subprocess.Popen[bytes]:
    """The command without input, with both its output streams in `log`, made anew. `more` is for Popen: cwd, env."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **more
        )


def session_members(session: int) -> list[int]:
    """The processes of a session that are not yet gone (zombies, whom only their parent can bury, do not count)."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _parent, _group, its_session = text.rpartition(")")[2].split()[:4]
        if int(its_session) == session and state != "Z":
            members.append(int(stat.parent.name))
    return members


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """Leave nothing of it, whatever state it is in, as a platform does that has lost its patience."""
    for member in session_members(leader.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    leader.wait()
