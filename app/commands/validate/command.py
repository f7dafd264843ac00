"""`trident validate`: prints every problem of every model of a repository, without opening a port."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from app.commands.validate.examination import Check, examine
from app.commands.validate.model_check import make_check, make_warnings
from app.commands.validate.options import read_validate_options
from app.commands.validate.report import json_report, text_report
from app.process.environment import disable_telemetry


def validate(arguments: Sequence[str], *, check: Check | None = None) -> int:
    """Print the report. The exit status is 1 if there is a problem, otherwise 0, even if there are warnings.

    `check` finds the problems of one model; None is the real check, which makes sessions. Raises BadOption.
    """
    options = read_validate_options(arguments)
    _log_warnings_only()
    disable_telemetry()
    report = examine(options.repositories, check or make_check(options), make_warnings(options))
    sys.stdout.write(json_report(report) if options.format == "json" else text_report(report))
    return 1 if report.findings else 0


def _log_warnings_only() -> None:
    """Log warnings to stderr, and no errors: the report contains them."""
    from core.observability.logging import LogOptions, configure_logging

    configure_logging(LogOptions(info=False, error=False))
