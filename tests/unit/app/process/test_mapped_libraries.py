from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

from app.process.mapped_libraries import _is_clean, _read_only_mappings
from tests.project import ROOT

PAGES = 3
# In a process of its own, because the pages of this one are in use by all that the other tests have started.
RELEASE = """
import ssl, numpy
from app.process.mapped_libraries import release_library_pages
from core.observability.hardware.host_memory import resident_bytes
before = resident_bytes()
segments = release_library_pages()
print(segments, before - resident_bytes(), numpy.ones((8, 8)).dot(numpy.ones(8)).sum(), len(ssl.RAND_bytes(9)))
"""


def test_libraries_work_after_their_pages_were_released() -> None:
    told = subprocess.run(
        [sys.executable, "-c", RELEASE], capture_output=True, text=True, cwd=ROOT, check=True, timeout=120
    )
    segments, returned, total, length = told.stdout.split()
    assert int(segments) > 20, told.stdout
    assert int(returned) > 2 << 20, told.stdout
    assert (float(total), int(length)) == (64.0, 9)


def test_only_what_is_not_written_of_files_with_code_is_looked_at() -> None:
    lines = [
        "1000-3000 r--p 00000000 fe:00 7    /lib/libx y.so",
        "3000-4000 r-xp 00002000 fe:00 7    /lib/libx y.so",
        "4000-5000 rw-p 00003000 fe:00 7    /lib/libx y.so",
        "5000-6000 ---p 00004000 fe:00 7    /lib/libx y.so",
        "6000-9000 r--p 00000000 fe:00 8    /models/weights.bin",
        "9000-a000 r-xp 00000000 00:00 0    [vdso]",
        "a000-b000 r-xp 00000000 00:00 0 ",
    ]
    assert _read_only_mappings(lines) == [(0x1000, 0x2000), (0x3000, 0x1000)]


def test_segments_with_a_private_copy_of_a_page_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.write_bytes(bytes(PAGES * mmap.PAGESIZE))
    pagemap = os.open("/proc/self/pagemap", os.O_RDONLY)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        start = ctypes.addressof(view)
        assert memory[0] == 0
        assert _is_clean(pagemap, start, len(memory))
        memory[mmap.PAGESIZE] = 1
        assert not _is_clean(pagemap, start, len(memory))
        del view
    os.close(pagemap)
