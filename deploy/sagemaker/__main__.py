"""`python -m deploy.sagemaker`: create, update, scale, test and delete endpoints on SageMaker."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TextIO

from deploy.sagemaker.options import parser


def main(arguments: Sequence[str], out: TextIO = sys.stdout, errors: TextIO = sys.stderr) -> int:
    """Run a command line. The exit status is 0 for success, 1 for a failure of AWS or the endpoint, 2 for bad settings.

    argparse raises SystemExit with 2 for a malformed command line.
    """
    try:
        given = parser().parse_args(arguments)
        from deploy.sagemaker.aws import Aws, DeployError, check_name, clients
        from deploy.sagemaker.create import host_image

        act = getattr(import_module(f"deploy.sagemaker.{given.action}"), given.action)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("deploy", "trident"):
            raise
        print(f"error: the package {package} is missing: pip install .", file=errors)
        return 1
    if given.endpoint_url and "://" not in given.endpoint_url:
        given.endpoint_url = f"http://{given.endpoint_url}"
    try:
        check_name(given.name)
        # Every call is checked before the first one is made.
        printed = io.StringIO()
        dry = Aws(None, printed)
        act(dry, given)
        dry.raise_problems()
        if given.action in ("create", "update") and (why := host_image(given)[1]):
            print(why, file=errors)
        if given.dry_run:
            print(printed.getvalue(), end="", file=out)
            return 0
        with ExitStack() as stack:
            aws = Aws(clients(stack, given.region, given.endpoint_url), out)
            act(aws, given)
            return 1 if aws.failures else 0
    except DeployError as error:
        print(error, file=errors)
        if error.hint:
            print(error.hint, file=errors)
        return error.status
    except KeyboardInterrupt:
        print("interrupted: AWS continues with what was requested", file=errors)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
