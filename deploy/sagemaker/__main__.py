"""`python -m deploy.sagemaker`: create, update, scale, test and delete endpoints on SageMaker."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO

from deploy.sagemaker.actions import plan_of
from deploy.sagemaker.execute import Clients, Executor, Printer
from deploy.sagemaker.host_image import reason
from deploy.sagemaker.options import parser
from deploy.sagemaker.plan import DeployError, check_plan
from deploy.sagemaker.smoke import Smoke, SmokeRun


def main(arguments: Sequence[str], out: TextIO = sys.stdout, errors: TextIO = sys.stderr) -> int:
    """Run a command line. The exit status is 0 for success, 1 for a failure of AWS or the endpoint, 2 for bad settings.

    argparse raises SystemExit with 2 for a malformed command line.
    """
    given = parser().parse_args(arguments)
    try:
        return _run(given.action, given, Printer(out), errors)
    except DeployError as error:
        print(error, file=errors)
        if error.hint:
            print(error.hint, file=errors)
        return error.status
    except KeyboardInterrupt:
        print("interrupted: AWS continues with what was requested", file=errors)
        return 130


def _run(action: str, given: argparse.Namespace, printer: Printer, errors: TextIO) -> int:
    smoke = Smoke.of(given) if action == "smoke" else None
    plan = smoke.plan() if smoke else plan_of(given, datetime.now(UTC))
    check_plan(plan)
    if given.action in ("create", "update") and (why := reason(given)):
        print(why, file=errors)
    if given.dry_run:
        printer.plan(plan)
        return 0
    with Clients(given.region, given.endpoint_url) as client_of:
        if smoke:
            SmokeRun(client_of, printer).run(smoke)
            return 0
        return 1 if Executor(client_of, printer).run(plan) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
