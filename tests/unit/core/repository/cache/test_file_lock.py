"""Locks on files. Each lock has its own descriptor, so threads behave like processes here."""

from __future__ import annotations

import threading
from pathlib import Path

from trident.core.repository.disk import lock_shared, try_lock_exclusive


def test_shared_lock_excludes_the_exclusive_one(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    first, second = lock_shared(path), lock_shared(path)
    assert try_lock_exclusive(path) is None
    first.release()
    first.release()
    assert try_lock_exclusive(path) is None
    second.release()
    alone = try_lock_exclusive(path)
    assert alone is not None
    assert try_lock_exclusive(path) is None
    alone.release()


def test_waiter_locks_the_file_that_replaced_the_removed_one(tmp_path: Path) -> None:
    """A waiter must not end up with a lock on the removed file."""
    path = tmp_path / "a.lock"
    old = try_lock_exclusive(path)
    assert old is not None
    got = []
    waiting = threading.Thread(target=lambda: got.append(lock_shared(path)))
    waiting.start()
    path.unlink()
    old.release()
    waiting.join(10)
    assert try_lock_exclusive(path) is None
    got[0].release()
    assert path.exists()
