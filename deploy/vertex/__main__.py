"""`python -m deploy.vertex`: models and endpoints on Vertex AI."""

from __future__ import annotations

import io
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

try:
    from deploy.vertex import batch, delete, deploy, shift, smoke, upload
    from deploy.vertex.api import CallFailed, Vertex
    from trident.adapters.common.options import BadOption
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package in ("deploy", "trident"):
        raise
    sys.exit(f"error: the package {package} is missing: pip install . 'google-cloud-aiplatform>=2.7,<3'")

# By the name of each action: its help, its options and what it does.
ACTIONS = {
    "upload": ("a model, or a new version of a model", upload.add_options, upload.act),
    "deploy": ("a model to an existing or new endpoint", deploy.add_options, deploy.act),
    "shift": ("traffic from one deployed model to another", shift.add_options, shift.act),
    "smoke": ("test calls of every kind through an endpoint", smoke.add_options, smoke.act),
    "batch": ("a batch prediction job", batch.add_options, batch.act),
    "delete": ("endpoints with their deployed models, and models", delete.add_options, delete.act),
}
_ARGUMENTS = "The arguments after -- are the arguments of the container: the command line of the server."


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m deploy.vertex", description="Models on Vertex AI.", allow_abbrev=False)
    under = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (text, add_options, _) in ACTIONS.items():
        epilog = _ARGUMENTS if name == "upload" else None
        made = under.add_parser(name, help=text, description=f"{name}: {text}.", epilog=epilog, allow_abbrev=False)
        made.add_argument("--project", required=True, metavar="ID", help="the project")
        made.add_argument("--location", required=True, metavar="NAME", help="the location, such as us-central1")
        made.add_argument("--dry-run", action="store_true", help="print the calls without making them")
        made.add_argument("--api-endpoint", default="", metavar="URL", help="address of the API; http://: an emulator")
        made.add_argument("--timeout-secs", type=float, default=7200.0, metavar="S", help="limit for a call")
        made.add_argument("--settings", type=Path, metavar="FILE", help="JSON with further parameters, by call")
        add_options(made)
    return parser


def run(
    arguments: Sequence[str],
    out: TextIO,
    errors: TextIO,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run a command line. The exit status is 0 for success, 1 for a failed call, 2 for bad options.

    argparse raises SystemExit with 2 for a malformed command line.
    """
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    options = _parser().parse_args(given[:end])
    options.container_arguments = given[end + 1 :]
    act = ACTIONS[options.action][2]
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
