"""Ports on loopback for the servers that a test starts."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import ExitStack

HOST = "127.0.0.1"
# Below the range that the system takes the ports of outgoing connections from: no client takes such a port between
# the moment it is found free here and the moment a server listens on it.
_RANGE = range(20_000, 32_000)
# Processes that run tests at the same time begin at different places, and none comes back to a port soon.
_START = os.getpid() * 997 % len(_RANGE)
_candidates = itertools.cycle([*_RANGE[_START:], *_RANGE[:_START]])


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = next(_candidates)
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
    return found
