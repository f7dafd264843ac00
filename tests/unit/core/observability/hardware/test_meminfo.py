from __future__ import annotations

import pytest

from tests.unit.core.observability.hardware.proc_files import MEMINFO
from trident.core.observability.hardware import memory_bytes


def test_used_memory_is_total_less_available() -> None:
    assert memory_bytes(MEMINFO) == (2000 * 1024, 500 * 1024)


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemTotal:\nMemAvailable: 5 kB\n", "MemTotal: x kB\n"])
def test_a_malformed_meminfo_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"meminfo|invalid literal"):
        memory_bytes(text)
