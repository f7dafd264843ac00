"""The allocator's options."""

from __future__ import annotations

import platform

from app.memory import keep_freed_memory


def test_options_are_taken_by_glibc() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
