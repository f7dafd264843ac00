from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from app.process.end import end_text
from tests.project import ROOT


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with status 0"),
        (3, "ended with status 3"),
        (-signal.SIGKILL, "was ended by SIGKILL"),
        (-(signal.SIGRTMIN + 1), f"was ended by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_the_log_names_the_status_or_the_signal(code: int, text: str) -> None:
    assert end_text(code) == text


def test_exit_now_flushes_the_output_and_skips_pythons_finalisation() -> None:
    program = (
        "import atexit, sys; from app.process.end import exit_now; atexit.register(print, 'finalised');"
        "sys.stdout.write('written'); exit_now(7)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (ended.returncode, ended.stdout) == (7, "written")
