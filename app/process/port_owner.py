"""The process that listens on a port of this machine.

Source: proc(5), /proc/net/tcp and /proc/PID/fd.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"
_LONGEST_COMMAND = 80


def listening_inodes(table: str, port: int) -> set[str]:
    """The inodes of the sockets that listen on `port`, from the text of /proc/net/tcp or /proc/net/tcp6."""
    rows = [row.split() for row in table.splitlines()[1:]]
    ending = f":{port:04X}"
    return {row[9] for row in rows if len(row) > 9 and row[1].endswith(ending) and row[3] == _LISTENING}


def owner_of(port: int, proc: Path = _PROC) -> str:
    """The process that listens on `port`, as `COMMAND (pid N)`; empty if it belongs to another user or container.

    The options of the command are left out: they may have secrets.
    """
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            inodes |= listening_inodes((proc / "net" / name).read_text(), port)
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)) if sockets else ():
        with suppress(OSError):
            if any(_target(entry) in sockets for entry in (process / "fd").iterdir()):
                return f"{_command(process)} (pid {process.name})"
    return ""


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed in the meantime
        return ""


def _command(process: Path) -> str:
    """The words of a command before its first option, or the name of a process that has none. Raises OSError."""
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    first = next((index for index, word in enumerate(words) if index and word.startswith("-")), len(words))
    return " ".join(filter(None, words[:first]))[:_LONGEST_COMMAND] or (process / "comm").read_text().strip()
