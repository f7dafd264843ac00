"""`trident validate`: prints every problem of every model of a repository, without opening a port."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from app.commands.validate.cloud_repository import CloudRepository
from app.commands.validate.examination import Check, Repository, examine
from app.commands.validate.graph.drawings import DRAWINGS
from app.commands.validate.graph.layout import layout_graph
from app.commands.validate.local_repository import LocalRepository
from app.commands.validate.model_check import make_check, make_warnings
from app.commands.validate.options import ValidateOptions, read_validate_options
from app.commands.validate.report import json_report, text_report
from app.process.environment import disable_telemetry, process_environment


def validate(arguments: Sequence[str], *, check: Check | None = None) -> int:
    """Print the report, and the drawings if they are asked for.

    The exit status is 1 if there is a problem, otherwise 0, even if there are warnings.

    `check` finds the problems of one model; None is the real check, which makes sessions. Raises BadOption.
    """
    options = read_validate_options(arguments, process_environment())
    _log_warnings_only()
    disable_telemetry()
    with _opener(options) as open_repository:
        if check is not None:
            report = examine(options.repositories, check, make_warnings(options), open_repository)
        else:
            made = make_check(options)
            report = examine(options.repositories, made, made.warnings, open_repository, made.together)
            if options.graph:
                broken = {finding.model for finding in report.findings}
                drawn = [
                    layout_graph(spec.name, spec.inputs, spec.outputs, steps)
                    for spec, steps in made.known.ensembles
                    if spec.name not in broken
                ]
                sys.stdout.write(DRAWINGS[options.graph](drawn))
    output = sys.stderr if options.graph else sys.stdout
    output.write(json_report(report) if options.format == "json" else text_report(report))
    return 1 if report.findings else 0


@contextmanager
def _opener(options: ValidateOptions) -> Iterator[Callable[[str], Repository]]:
    """Opens repositories; their downloads end with the context."""
    from core.repository.location import Scheme, parse_location

    opener = options.cache.opener()

    def open_repository(text: str) -> Repository:
        if parse_location(text).scheme is Scheme.LOCAL:
            return LocalRepository(text)
        return CloudRepository(opener, text, options.config_name)

    try:
        yield open_repository
    finally:
        opener.stop()


def _log_warnings_only() -> None:
    """Log warnings to stderr, and no errors: the report contains them."""
    from core.observability.logging import LogOptions, configure_logging

    configure_logging(LogOptions(info=False, error=False))
