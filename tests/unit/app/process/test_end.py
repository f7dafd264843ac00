from __future__ import annotations

import subprocess
import sys

from tests.project import ROOT


def test_exit_now_flushes_the_output_and_skips_pythons_finalisation() -> None:
    program = (
        "import atexit, sys; from trident.app.process.end import exit_now; atexit.register(print, 'finalised');"
        "sys.stdout.write('written'); exit_now(7)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (ended.returncode, ended.stdout) == (7, "written")
