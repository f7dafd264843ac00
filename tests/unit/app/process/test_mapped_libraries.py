from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

from app.process.mapped_libraries import _is_clean
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
