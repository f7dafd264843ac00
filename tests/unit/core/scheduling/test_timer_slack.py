from __future__ import annotations

import sys
import threading

import pytest

from trident.core.scheduling.batcher import end_waits_in_time, timer_slack_ns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has timer slack")


def test_only_the_calling_thread_is_woken_in_time() -> None:
    before = timer_slack_ns()
    found: list[int] = []

    def wait() -> None:
        end_waits_in_time()
        found.append(timer_slack_ns())

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert found == [1]
    assert timer_slack_ns() == before > 1
