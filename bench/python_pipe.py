"""A bare round trip through `multiprocessing.Pipe`: what two Python processes pay to exchange a small message."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

# As many bytes as the tensors of an add/sub request.
MESSAGE = bytes(128)
_BLOCK = 1000


def _echo(pipe: Connection) -> None:
    while message := pipe.recv_bytes():
        pipe.send_bytes(message)


def round_trips_us(seconds: float) -> list[float]:
    """Microseconds for a round trip, the mean of each block of a thousand."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_echo, args=(there,), daemon=True)
    process.start()
    try:
        _block_us(here)
        blocks: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            blocks.append(_block_us(here))
    finally:
        here.send_bytes(b"")
        process.join(10)
    return blocks


def _block_us(pipe: Connection) -> float:
    began = time.perf_counter()
    for _ in range(_BLOCK):
        pipe.send_bytes(MESSAGE)
        pipe.recv_bytes()
    return (time.perf_counter() - began) / _BLOCK * 1e6


if __name__ == "__main__":
    print(f"{statistics.median(round_trips_us(2)):.1f} µs")
