"""`trident trace FILE`: prints each request of a trace file as a tree, one line a span, with bars.

It reads the files of this server and those of Triton. Source: docs/spec/trace-and-log.md section 3.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from app.commands.trace.drawing import draw
from app.commands.trace.trace_file import read_requests
from app.settings.command_line import CommandLine
from app.settings.option import BadOption, Option
from app.settings.option_types import TEXT, BadValue, integer

_REQUEST = Option(flag="request", kind=TEXT, help="Show only requests with this id.", section="", variable="")
_SLOWEST = Option(
    flag="slowest",
    kind=integer(1),
    help="Show only this many requests, those that took longest first.",
    section="",
    variable="",
)
ACCEPTED = (_REQUEST, _SLOWEST)


def trace(arguments: Sequence[str]) -> int:
    """Print the trees. Returns 0. Raises BadOption, also for a file that cannot be read."""
    given, files = CommandLine(ACCEPTED).split(arguments)
    if len(files) != 1:
        raise BadOption("one trace file is expected: trident trace FILE")
    requests = read_requests(Path(files[0]))
    for option, text in given:
        try:
            value = option.kind.parse(text)
        except BadValue as error:
            raise BadOption.of(f"--{option.flag}", str(error)) from None
        if option is _REQUEST:
            requests = [request for request in requests if request.request_id == value]
        else:
            requests = sorted(requests, key=lambda request: -request.span.duration_ns)[:value]
    if not requests:
        raise BadOption(f"{files[0]} has no such request")
    sys.stdout.write("\n".join(draw(request.span) for request in requests))
    return 0
