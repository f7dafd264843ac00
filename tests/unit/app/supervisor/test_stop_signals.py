from __future__ import annotations

import subprocess
import sys

from tests.project import ROOT

SIGNALS_BEFORE_THE_HANDLERS = """
import os, signal, threading
from trident.app.supervisor.start import hold_stop_signals, note_stop_signals, send_noted_signals

lost, seen, masks = [], [], []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: lost.append(number))
hold_stop_signals()
os.kill(os.getpid(), signal.SIGTERM)
note_stop_signals()
os.kill(os.getpid(), signal.SIGUSR1)
thread = threading.Thread(target=lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
thread.start()
thread.join()
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: seen.append(number))
assert seen == []
send_noted_signals()
assert sorted(seen) == [signal.SIGUSR1, signal.SIGTERM], seen
assert lost == [], lost
assert masks == [set()], masks
"""


def test_signals_that_come_before_a_workers_handlers_are_kept_and_its_threads_block_none() -> None:
    code = [sys.executable, "-c", SIGNALS_BEFORE_THE_HANDLERS]
    ended = subprocess.run(code, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ended.returncode == 0, ended.stderr
