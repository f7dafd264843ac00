"""What the interpreter would print itself, in the log."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.project import ROOT

PROGRAM = """
import sys, threading, warnings
import gevent
from trident.app.process.stray_output import log_hub_failures, log_stray_messages
from trident.core.observability.log import LogOptions, configure_logging

configure_logging(LogOptions(format="json"))
log_stray_messages()
log_hub_failures(gevent.get_hub())

def fail():
    raise ValueError("for the test")

class Bad:
    def __del__(self):
        fail()

{}
"""


@pytest.mark.parametrize(
    ("statements", "message", "level"),
    [
        ("fail()", "an unexpected error ended the process", "ERROR"),
        ("thread = threading.Thread(target=fail, name='t'); thread.start(); thread.join()", "thread t failed", "ERROR"),
        ("Bad()", "exception was ignored in", "ERROR"),
        ("gevent.spawn(fail).join()", "failed with ValueError", "ERROR"),
        ("gevent.get_hub().loop.run_callback(fail); gevent.sleep(0)", "failed with ValueError", "ERROR"),
        ("warnings.warn('old', stacklevel=1)", "UserWarning: old", "WARNING"),
    ],
)
def test_a_stray_message_is_one_event(statements: str, message: str, level: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statements)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    (event,) = [json.loads(line) for line in (run.stdout + run.stderr).splitlines()]
    assert message in event["message"]
    assert event["level"] == level
    assert ("ValueError: for the test" in event.get("traceback", "")) == (level == "ERROR")
