from __future__ import annotations

import platform

from trident.app.process.heap import IdleTrim, keep_freed_memory, use_one_heap


def test_glibc_accepts_the_options() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
    assert use_one_heap() is (platform.libc_ver()[0] == "glibc")


def test_memory_is_returned_once_after_each_idle_time() -> None:
    trims: list[int] = []
    releases: list[int] = []
    collections: list[int] = []
    idle = IdleTrim(
        lambda: releases.append(1), lambda: trims.append(1), rest_s=5, collect=lambda: collections.append(1)
    )
    idle.tick(10.0, 0.0)
    assert trims == []  # no work yet, so nothing to return
    idle.tick(11.0, 11.0)
    idle.tick(15.0, 14.0)
    idle.tick(19.0, 14.0)
    assert trims == []
    idle.tick(19.5, 14.0)
    idle.tick(60.0, 14.0)
    assert trims == [1]
    idle.tick(61.0, 60.5)
    idle.tick(70.0, 60.5)
    assert trims == releases == collections == [1, 1]


def test_it_collects_while_requests_wait_if_it_must() -> None:
    collections: list[int] = []
    due = [False, True, False]
    idle = IdleTrim(trim=lambda: None, collect=lambda: collections.append(1), must_collect=lambda: due.pop(0))
    for now in (10.0, 11.0, 12.0):
        idle.tick(now, now)
    assert (collections, due) == ([1], [])
