"""The buffers of which a response consists."""

from __future__ import annotations

from core.inference.tensors import Buffer


def size_of(part: Buffer) -> int:
    """The size of one part in bytes."""
    return len(part) if isinstance(part, bytes) else memoryview(part).nbytes


def drop_sent(parts: list[Buffer], sent: int) -> None:
    """Remove the first `sent` bytes from `parts`, which hold more than that."""
    first = 0
    while sent >= size_of(parts[first]):
        sent -= size_of(parts[first])
        first += 1
    del parts[:first]
    parts[0] = memoryview(parts[0]).cast("B")[sent:]
