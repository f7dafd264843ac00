"""The output of a child process in the log: real children, which are forked from a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.project import ROOT

PROGRAM = """
import json, logging, os, signal, sys, time
from trident.app.process.stray_output import CapturedOutput
from trident.app.process.environment import exit_now
from trident.core.observability.log import LogOptions, configure_logging

configure_logging(LogOptions(format="json"))
captured = CapturedOutput()
pid = os.fork()
if not pid:
    captured.begin()
    {child}
    exit_now(0)
os.waitpid(pid, 0)
captured.end(pid)
logging.shutdown()
print(json.dumps({{"logger": "test", "message": "end", "child": pid}}))
"""


def events(child: str) -> list[dict[str, Any]]:
    """All lines that the child's statements and the parent leave on stdout and stderr, each a JSON object."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(child=child)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert {event["pid"] for event in found[:-1]} <= {found[-1]["child"]}
    return found[:-1]


def native(child: str) -> list[str]:
    """The different native lines in their order. The last ones before a child ends may be logged twice."""
    messages = [event["message"] for event in events(child) if event["logger"] == "trident.native"]
    return list(dict.fromkeys(messages))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGSEGV)", "os.abort()"])
def test_no_line_is_lost_however_the_child_ends(end: str) -> None:
    lines = [f"line {number}" for number in range(10_000)]
    child = f"os.write(2, b''.join(b'line %d\\n' % n for n in range(10_000)) + b'unfinished'); {end}"
    assert native(child) == [*lines, "unfinished"]


@pytest.mark.slow
def test_lines_of_a_running_child_are_logged_and_their_memory_freed() -> None:
    """The child waits until less of the file is in memory than it wrote: what was read is freed."""
    child = """
    for number in range(3000):
        os.write(2, b"%d " % number + b"x" * 1000 + b"\\n")
    until = time.monotonic() + 30
    while os.fstat(2).st_blocks * 512 >= 2_000_000 and time.monotonic() < until:
        time.sleep(0.01)
    os.write(2, b"still %d bytes" % (0 if os.fstat(2).st_blocks * 512 < 2_000_000 else 2))
    """.strip()
    found = native(child)
    assert [line.split()[0] for line in found[:-1]] == [str(number) for number in range(3000)]
    assert found[-1] == "still 0 bytes"


def test_child_log_goes_to_its_original_stderr() -> None:
    child = "logging.getLogger('trident.child').error('mine'); print('stray', file=sys.stderr, flush=True)"
    assert {event["logger"]: event["message"] for event in events(child)} == {
        "trident.child": "mine",
        "trident.native": "stray",
    }


def test_output_of_the_child_and_its_programs_is_logged() -> None:
    child = "print('by Python'); sys.stdout.flush(); os.system('echo by a program')"
    found = {event["message"]: (event["level"], event["file"]) for event in events(child)}
    assert found == {"by Python": ("INFO", "stdout"), "by a program": ("INFO", "stdout")}
    assert native("import subprocess; subprocess.run(['sh', '-c', 'echo from a program >&2'])") == ["from a program"]


STRAY_PROGRAM = """
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
def test_uncaught_errors_and_warnings_are_logged_as_one_event(statements: str, message: str, level: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", STRAY_PROGRAM.format(statements)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    (event,) = [json.loads(line) for line in (run.stdout + run.stderr).splitlines()]
    assert message in event["message"]
    assert event["level"] == level
    assert ("ValueError: for the test" in event.get("traceback", "")) == (level == "ERROR")
