"""Waiting for one descriptor, whatever its number: `select` takes none from 1024 on."""

from __future__ import annotations

import select


def wait_readable(descriptor: int, timeout_s: float | None) -> bool:
    """Block until there is something to read or the other end is gone, at most `timeout_s` seconds; whether it is."""
    return _wait(descriptor, select.POLLIN, timeout_s)


def wait_writable(descriptor: int, timeout_s: float | None) -> bool:
    """Block until the descriptor takes something or the other end is gone, at most `timeout_s` seconds; whether so."""
    return _wait(descriptor, select.POLLOUT, timeout_s)


def _wait(descriptor: int, events: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
