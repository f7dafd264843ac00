from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.waiting import until
from trident.app.commands.emulate_options import stop_signals

# In a separate process, because a failure is a main thread that blocks forever.
_MANY_SIGNALS = """
import os, signal, threading
from trident.app.commands.emulate_options import stop_signals
from tests.waiting import until

def send():
    for _ in range(20_000):
        os.kill(os.getpid(), signal.SIGTERM)

with stop_signals() as stopped:
    sender = threading.Thread(target=send)
    sender.start()
    while sender.is_alive():
        stopped.wait(0)
    assert stopped.wait(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_sets_the_event_and_regains_its_action_afterwards(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with stop_signals() as stopped:
            assert not stopped.is_set()
            os.kill(os.getpid(), number)
            assert stopped.wait(30)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_ignored_by_nohup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as stopped:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopped.wait(30)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_context_ends_its_thread_without_a_signal() -> None:
    threads = threading.active_count()
    with stop_signals() as stopped:
        pass
    until(lambda: threading.active_count() <= threads)
    assert stopped.is_set()  # so that its waiters continue


def test_a_signal_at_any_moment_does_not_block_the_main_thread() -> None:
    subprocess.run([sys.executable, "-c", _MANY_SIGNALS], check=True, timeout=120)
