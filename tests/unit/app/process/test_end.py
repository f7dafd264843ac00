"""A stop signal before the server has begun."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.project import ROOT


def test_exit_now_flushes_the_output_and_skips_pythons_finalisation() -> None:
    program = (
        "import atexit, sys; from trident.app.process.end import exit_now; atexit.register(print, 'finalised');"
        "sys.stdout.write('written'); exit_now(7)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (ended.returncode, ended.stdout) == (7, "written")


# It signals itself while it reads the settings of a server.
SCRIPT = """
import os, sys
import trident.app.cli
class Reading:
    def find_spec(self, name, path, target=None):
        if name == "trident.app.settings.reading":
            os.kill(os.getpid(), int(sys.argv.pop()))
sys.meta_path.insert(0, Reading())
sys.argv[1:1] = ["serve", "/none"]
sys.exit(trident.app.cli.main())
"""


STRAY = """
import trident.app.cli, trident.app.process.end, os, signal
trident.app.process.end.pass_over_stray_signals()
for name in "ALRM VTALRM PROF IO PWR STKFLT USR1 USR2".split():
    os.kill(os.getpid(), getattr(signal, f"SIG{name}"))
print("lives")
"""


def test_a_signal_that_means_nothing_to_a_server_does_not_end_it() -> None:
    ended = subprocess.run([sys.executable, "-c", STRAY], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "lives\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_a_server_that_is_still_imported(number: signal.Signals) -> None:
    command = [sys.executable, "-c", SCRIPT, str(int(number))]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
