"""A program as the leader of a session, by which the processes it starts are found and killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRIDENT = str(Path(sys.executable).with_name("trident"))


def start_session(command: Sequence[str], log: Path, **more: Any) -> subprocess.Popen[bytes]:
    """Start the command without input. `log` is a new file for its output. `more` is passed to Popen: cwd, env."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **more
        )


def session_members(session: int) -> list[int]:
    """The running processes of a session, without zombies."""
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


def resident_kb(leader: subprocess.Popen[bytes], field: str = "VmRSS") -> int:
    """The resident memory of all processes of the leader's session, or a part of it."""
    total = 0
    for member in session_members(leader.pid):
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{member}/status").read_text())
        total += int(found[1]) if found else 0
    return total


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the leader's session."""
    for member in session_members(leader.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    leader.wait()
