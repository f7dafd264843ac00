"""Locks on files, between the threads of one process (a descriptor each, so as between processes)."""

from __future__ import annotations

import threading
from pathlib import Path

from core.repository.cache.file_lock import lock_shared, try_lock_exclusive


def test_shared_locks_keep_the_exclusive_one_out(tmp_path: Path) -> None:
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


def test_a_lock_on_a_file_that_has_gone_is_none(tmp_path: Path) -> None:
    """Who waited while the file was removed has the one that is there now."""
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
