"""`python -m deploy.vertex`: models and endpoints on Vertex AI."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import TextIO

from deploy.vertex.options import parser

_INSTALLATION = "pip install . 'google-cloud-aiplatform>=2.7,<3'"


def run(
    arguments: Sequence[str],
    out: TextIO,
    errors: TextIO,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run a command line. The exit status is 0 for success, 1 for a failed call or an absent package, 2 for bad
    options.

    argparse raises SystemExit with 2 for a malformed command line.
    """
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    options = parser().parse_args(given[:end])
    options.container_arguments = given[end + 1 :]
    try:
        from deploy.vertex.api import CallFailed, Vertex
        from trident.adapters.common.options import BadOption

        act = import_module(f"deploy.vertex.{options.action}").act
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("deploy", "trident"):
            raise
        print(f"error: the package {package} is missing: {_INSTALLATION}", file=errors)
        return 1
    try:
        if options.container_arguments and options.action != "upload":
            raise BadOption("A container gets its arguments when its model is uploaded: use -- only with upload")
        # Every option is checked before the first call is made.
        printed = io.StringIO()
        act(Vertex(options, printed, now(), is_dry=True), options)
        if options.dry_run:
            print(printed.getvalue(), end="", file=out)
            return 0
        vertex = Vertex(options, out, now(), is_dry=False, sleep=sleep)
        act(vertex, options)
        return 1 if vertex.failures else 0
    except BadOption as error:
        print(f"error: {error}", file=errors)
        return 2
    except CallFailed as error:
        print(f"error: {error}", file=errors)
        return 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], sys.stdout, sys.stderr))
