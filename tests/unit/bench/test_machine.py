"""bench/machine.py: whose CPU time it was."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.machine import MachineLoad, tree_members, tree_seconds

BURN = "import time\nwhile time.process_time() < 0.3: pass"


def python(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    ("others", "stolen", "crowded"),
    [(0.0, 0.0, False), (0.09, 0.04, False), (0.11, 0.0, True), (0.0, 0.06, True)],
)
def test_a_machine_is_crowded_above_either_limit(others: float, stolen: float, crowded: bool) -> None:
    assert MachineLoad(others, stolen, load_average=9.0).crowded is crowded


def test_tree_seconds_include_children_that_have_ended_and_those_that_still_run() -> None:
    before = tree_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", BURN], check=True)
    between = tree_seconds(os.getpid())
    assert between - before >= 0.25  # of 0.3, counted in ticks of 10 ms by two clocks
    with python(f"{BURN}\nprint(flush=True)\ninput()") as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert tree_seconds(os.getpid()) - between >= 0.25
        assert tree_members(os.getpid()) >= {os.getpid(), child.pid}
        child.communicate(b"\n")


@pytest.mark.slow
def test_tree_seconds_leave_out_other_processes() -> None:
    with python(f"{BURN}\nprint(flush=True)\ninput()") as child:
        assert child.stdout is not None
        child.stdout.readline()
        with python("print(flush=True)\ninput()") as other:
            assert other.stdout is not None
            other.stdout.readline()
            assert tree_seconds(other.pid) < tree_seconds(child.pid)
            other.communicate(b"\n")
        child.communicate(b"\n")
