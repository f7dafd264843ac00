"""What the loads of a multi-model endpoint's front ends may take of the memory that all of them have.

Each front end keeps its own loads itself; here are those of the others.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import orjson

from core.repository.cache.file_lock import FileLock, lock_exclusive, try_lock_exclusive

Need: TypeAlias = Mapping[str, int]
"""Bytes by device."""

_PAUSE_S = 0.1


class Reservations(Protocol):
    """All methods but `disturb` are called within `admission`; none waits longer than others hold that."""

    pause_s: float | None
    """After this time a load that found no room looks again; None: others change nothing."""

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Inside, no other front end admits a load."""
        yield

    def needs(self) -> list[Need]:
        """What the running loads of the others may take."""
        ...

    def reserve(self, need: Need) -> Any:
        """Let the others know of a load. Returns what `release` takes."""

    def release(self, reservation: Any) -> bool:
        """End a reservation. Returns whether no other front end changed anything since it began."""
        ...

    def disturb(self) -> None:
        """Let the others know that memory was freed."""


class AloneReservations:
    """There is no other front end."""

    pause_s: float | None = None

    @contextmanager
    def admission(self) -> Iterator[None]:
        yield

    def needs(self) -> list[Need]:
        return []

    def reserve(self, need: Need) -> None:
        return None

    def release(self, reservation: Any) -> bool:
        return True

    def disturb(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Reservation:
    lock: FileLock
    changes: int


class SharedReservations:
    """One file for each load, locked by the front end that makes it: the lock of one that has died is free.

    `changes` counts what this and the other front ends reserve, and free.
    """

    pause_s: float | None = _PAUSE_S

    def __init__(self, folder: Path) -> None:
        """Make `folder` if it does not exist; all front ends of the server have the same."""
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        # Those of this process: what it changes itself it knows.
        self._own: set[Path] = set()
        self._own_changes = 0

    @contextmanager
    def admission(self) -> Iterator[None]:
        lock = lock_exclusive(self._folder / "admission")
        try:
            yield
        finally:
            lock.release()

    def needs(self) -> list[Need]:
        found = []
        for path in self._folder.glob("*.load"):
            if path in self._own:
                continue
            lock = try_lock_exclusive(path)
            if lock is not None:  # its process has died
                path.unlink(missing_ok=True)
                lock.release()
            else:
                found.append(orjson.loads(path.read_bytes()))
        return found

    def reserve(self, need: Need) -> Any:
        path = self._folder / f"{uuid.uuid4().hex}.load"
        lock = lock_exclusive(path)
        path.write_bytes(orjson.dumps(dict(need)))
        self._own.add(path)
        self._count()
        return _Reservation(lock, self._others_changes())

    def release(self, reservation: Any) -> bool:
        was_undisturbed = bool(self._others_changes() == reservation.changes)
        self._own.discard(reservation.lock.path)
        reservation.lock.path.unlink(missing_ok=True)
        reservation.lock.release()
        self._count()
        return was_undisturbed

    def disturb(self) -> None:
        with self.admission():
            self._count()

    def _count(self) -> None:
        changes = self._changes() + 1
        (self._folder / "changes").write_text(str(changes))
        self._own_changes += 1

    def _changes(self) -> int:
        try:
            return int((self._folder / "changes").read_text())
        except FileNotFoundError:
            return 0

    def _others_changes(self) -> int:
        return self._changes() - self._own_changes
