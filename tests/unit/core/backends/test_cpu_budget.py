"""The cores of cgroups, and their division among sessions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import ROOT
from trident.core.backends.cpu_budget import Spinning, available_cores, plan_threads, share_of, spinning_of

V1 = {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("files", "memberships", "affinity", "expected"),
    [
        ({"cpu.max": "250000 100000\n"}, "0::/\n", 16, 2.5),
        ({"cpu.max": "max 100000\n"}, "0::/\n", 3, 3),
        ({"cpu.max": "800000 100000\n"}, "0::/\n", 2, 2),
        # The least of its own and those above it.
        ({"a/cpu.max": "150000 100000", "a/b/cpu.max": "400000 100000"}, "0::/a/b\n", 16, 1.5),
        # A path of the host.
        ({"cpu.max": "200000 100000"}, "0::/../../not/here\n", 16, 2),
        ({f"cpu/a/{name}": text for name, text in V1.items()}, "5:memory:/a\n4:cpu,cpuacct:/a\n", 16, 0.5),
        ({f"cpu,cpuacct/a/{name}": text for name, text in V1.items()}, "4:cpu,cpuacct:/a\n", 16, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu:/\n", 4, 4),
        ({}, "", 5, 5),
    ],
)
def test_available_cores_are_the_least_of_affinity_and_quotas(
    files: dict[str, str], memberships: str, affinity: int, expected: float, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "memberships").write_text(memberships)
    assert available_cores(tmp_path, tmp_path / "memberships", affinity) == expected


@pytest.mark.parametrize(
    ("cores", "sessions", "threads"),
    [(0.5, 1, 1), (1.9, 4, 1), (2, 6, 2), (3, 1, 2), (4, 1, 3), (8, 3, 2), (16, 3, 5), (8, 0, 7)],
)
def test_each_session_gets_its_share(cores: float, sessions: int, threads: int) -> None:
    assert plan_threads(cores, sessions).intra_op_threads == threads


@pytest.mark.parametrize(
    ("cores", "size", "spinning"),
    [
        (2, 1000, Spinning.NEVER),
        (2, 1 << 20, Spinning.BRIEFLY),
        (7.9, 100 << 20, Spinning.BRIEFLY),
        (8, 1000, Spinning.FREELY),
    ],
)
def test_only_large_models_spin_briefly_on_few_cores(cores: float, size: int, spinning: Spinning) -> None:
    assert spinning_of(cores, size) is spinning


# --- several processes


@pytest.mark.parametrize(
    ("devices", "processes", "shares"),
    [
        ([0, 1, 2, 3], 2, [[0, 1], [2, 3]]),
        ([0, 1, 2], 2, [[0], [1, 2]]),
        ([4, 6], 2, [[4], [6]]),
        ([4, 6], 3, [[4], [6], [4]]),
    ],
)
def test_devices_are_divided_among_processes(devices: list[int], processes: int, shares: list[list[int]]) -> None:
    assert [list(share_of(devices, index, processes)) for index in range(processes)] == shares


def test_process_uses_only_its_share_of_cores() -> None:
    program = (
        "import os, threading\n"
        "from trident.core.backends.cpu_budget import available_cores, keep_to_share, pin_to_share\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "before, processors = available_cores(), sorted(os.sched_getaffinity(0))\n"
        "keep_to_share(2); pin_to_share(1, 2)\n"
        "assert available_cores() == before / 2\n"
        "seen = [os.sched_getaffinity(int(thread)) for thread in os.listdir('/proc/self/task')]\n"
        "assert seen == [set(processors[len(processors) // 2 :])] * len(seen) and len(seen) > 1\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
