from __future__ import annotations

import mmap
import threading

import pytest

from core.backends.devices import huge_pages
from core.backends.devices.huge_pages import (
    Mapping,
    await_huge_pages,
    begin_to_use_huge_pages,
    mappings_of,
    use_huge_pages,
)
from tests.waiting import until

MB = 1 << 20
SMAPS = """\
7f0000000000-7f0002000000 rw-p 00000000 00:00 0
Size:              32768 kB
Rss:               32760 kB
AnonHugePages:         0 kB
7f1000000000-7f1002000000 rw-p 00000000 00:00 0                          [heap]
Rss:               32768 kB
AnonHugePages:         0 kB
7f2000000000-7f2002000000 r--p 00000000 fe:00 77                         /usr/lib/weights of a file
Rss:               32768 kB
AnonHugePages:         0 kB
7f3000000000-7f3000400000 rw-p 00000000 00:00 0
Rss:                1024 kB
AnonHugePages:      1024 kB
"""


def test_only_private_memory_without_a_file_or_a_name_is_found() -> None:
    assert list(mappings_of(SMAPS.splitlines())) == [
        Mapping(0x7F0000000000, 0x7F0002000000, 32760 << 10, 0),
        Mapping(0x7F3000000000, 0x7F3000400000, MB, MB),
    ]


def test_only_filled_mappings_that_are_not_in_huge_pages_are_worth_it() -> None:
    assert Mapping(0, 32 * MB, 31 * MB, 0).is_worth_it
    assert not Mapping(0, 32 * MB, 31 * MB, 30 * MB).is_worth_it
    assert not Mapping(0, 32 * MB, 16 * MB, 0).is_worth_it
    assert not Mapping(0, MB, MB, 0).is_worth_it


@pytest.mark.slow
def test_contents_stay_where_they_are() -> None:
    """Whether the system moves them or not."""
    memory = mmap.mmap(-1, 16 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    content = bytes(range(256)) * (16 * MB // 256)
    memory[:] = content
    use_huge_pages()
    assert memory[:] == content
    memory.close()


def test_nobody_waits_for_the_move_and_its_threads_end() -> None:
    memory = mmap.mmap(-1, 16 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    content = bytes(range(256)) * (16 * MB // 256)
    memory[:] = content
    for _ in range(3):
        begin_to_use_huge_pages()
    memory.close()  # as a session that ends meanwhile gives back its weights
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "huge-pages"])


def test_a_load_waits_for_the_move_that_another_one_began(monkeypatch: pytest.MonkeyPatch) -> None:
    moving, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def move() -> int:
        moving.set()
        assert may_end.wait(60)
        ended.set()
        return 0

    monkeypatch.setattr(huge_pages, "use_huge_pages", move)
    begin_to_use_huge_pages()
    assert moving.wait(60)
    waiting = threading.Thread(target=await_huge_pages)
    waiting.start()
    may_end.set()
    waiting.join(60)
    assert ended.is_set()
    assert not waiting.is_alive()
