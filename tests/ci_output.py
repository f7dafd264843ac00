"""The output of the CI's run of the tests: few lines, of which the last name the tests that failed or were run twice.

The middle of a long output is cut where it is shown. A plugin of pytest, for `.ci/run`: `-p tests.ci_output`.
`--skipped-to=FILE` writes the tests that were skipped, for a later run with `@FILE`. `--hangs-to=FOLDER` ends a process
whose test has hung for five minutes, and says there which test that was, with the stacks of its threads.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator
from pathlib import Path

import pytest

_HANGS_AFTER_S = 300
# Of each captured section and of each part of a traceback.
_LINES = 60
_LINE_CHARACTERS = 1_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skipped-to", type=Path, help="write the ids of the tests that were skipped into this file")
    parser.addoption("--hangs-to", type=Path, help="write the stacks of a test that hangs into this folder")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not (folder := item.config.getoption("--hangs-to")):
        return (yield)
    with (folder / str(os.getpid())).open("w") as file:
        print(f"{item.nodeid} did not end:", file=file, flush=True)
        faulthandler.dump_traceback_later(_HANGS_AFTER_S, file=file, exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
            file.truncate(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if file := config.getoption("--skipped-to"):
        skipped = dict.fromkeys(report.nodeid for report in terminalreporter.stats.get("skipped", ()))
        file.write_text("".join(f"{name}\n" for name in skipped))


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """No dot for a test that passed: 15,000 dots would say nothing."""
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


def _shortened(lines: list[str]) -> list[str]:
    """The first and the last lines, more of the last, where what went wrong is."""
    if len(lines) > _LINES:
        head = _LINES // 3
        tail = _LINES - head
        lines = [*lines[:head], f"... {len(lines) - _LINES} lines left out ...", *lines[-tail:]]
    return [line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]} ..." for line in lines]
