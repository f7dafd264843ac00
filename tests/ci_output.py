"""What the CI's run of the tests prints: few lines, of which the last name the tests that failed or were run twice.

The middle of a long output is cut where it is shown. A plugin of pytest, for `.ci/run`: `-p tests.ci_output`.
"""

from __future__ import annotations

import socket
from collections.abc import Generator

import pytest

# Of each captured section and of each part of a traceback.
_LINES = 60
_LINE_CHARACTERS = 1_000

_crashed: set[str] = set()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have a worker of pytest-xdist ask at once whether a test is to be run again. Its messages to the process that
    knows are small, and each would wait up to 40 ms for the confirmation of the one before: minutes in all."""
    if its_socket := getattr(getattr(config, "failures_db", None), "sock", None):
        its_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """No dot for a test that passed: of 15,000 dots nobody reads one."""
    return ("passed", "", "PASSED") if report.when == "call" and report.outcome == "passed" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shorten what is shown of a test that failed: the log of a server may have thousands of lines."""
    report = yield
    if report.failed:
        report.sections = [(name, "\n".join(_shortened(text.splitlines()))) for name, text in report.sections]
        for traceback, *_ in getattr(report.longrepr, "chain", ()):
            for entry in traceback.reprentries:
                entry.lines = _shortened(entry.lines)
    return report


@pytest.hookimpl(optionalhook=True, trylast=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport) -> None:
    """A test that ended its process is run again by the next one; pytest-rerunfailures would count the first time as a
    failure all the same."""
    if crashitem not in _crashed:
        _crashed.add(crashitem)
        report.outcome = "rerun"  # type: ignore[assignment]


def _shortened(lines: list[str]) -> list[str]:
    """The first and the last lines, more of the last, where what went wrong is."""
    if len(lines) > _LINES:
        head = _LINES // 3
        tail = _LINES - head
        lines = [*lines[:head], f"... {len(lines) - _LINES} lines left out ...", *lines[-tail:]]
    return [line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]} ..." for line in lines]
