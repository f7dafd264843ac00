"""`python -m deploy.vertex`: reads its command line and prints or applies the plan."""

from __future__ import annotations

import re
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, NoReturn, TextIO

from deploy.vertex.plan import CallFailed, CheckFailed, Context, Place, Plan, shown
from trident.adapters.common.options import BadOption
from trident.app.settings.sources import nearest

PROGRAM = "python -m deploy.vertex"
_LIMIT_S = 7200.0
_OPTION = re.compile(r"--[a-z][a-z-]+")
_EPILOG = "The arguments after -- are the arguments of the container: the command line of the server."


# By the name of each action: its help, and the module with its options and its steps. The modules need Google's SDK;
# `--help` works without.
ACTIONS = {
    "upload": ("a model, or a new version of a model", "container"),
    "deploy": ("a model to an existing or new endpoint", "deploy"),
    "shift": ("traffic from one deployed model to another", "shift"),
    "smoke": ("test calls of every kind through an endpoint", "smoke"),
    "batch": ("a batch prediction job", "batch"),
    "delete": ("endpoints with their deployed models, and models", "delete"),
}


def _module(action: str) -> Any:
    return import_module(f"deploy.vertex.{ACTIONS[action][1]}")


class _Parser(ArgumentParser):
    """A parser that raises BadOption instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise BadOption(f"{message}\n{self.prog} --help lists the options")


def read_options(arguments: Sequence[str]) -> Namespace:
    """The options, with `action` and `container_arguments` (those after `--`). Raises BadOption."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    parser, actions = _parsers(given[0] if given else "")
    options, others = parser.parse_known_args(given[:end])
    if others:
        raise BadOption(_unknown(others[0], actions[options.action]))
    options.container_arguments = given[end + 1 :]
    if options.container_arguments and options.action != "upload":
        raise BadOption(
            "A container gets its arguments when its model is uploaded: use arguments after -- only with upload"
        )
    return options


def context(options: Namespace, now: datetime) -> Context:
    """The place, the API and the time for an action. Raises BadOption."""
    place = Place(options.project, options.location)
    api = options.api_endpoint or f"https://{place.host}"
    if not api.startswith(("http://", "https://")):
        raise BadOption.of("--api-endpoint", f"it takes https://HOST, or http://HOST of an emulator, not '{api}'")
    return Context(place, api.rstrip("/"), now)


def _parsers(chosen: str) -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    """The parser, and those of the actions; only the `chosen` action has its options."""
    parser = _Parser(prog=PROGRAM, description="Models on Vertex AI.", allow_abbrev=False)
    under = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    made: dict[str, ArgumentParser] = {}
    for name, (text, _) in ACTIONS.items():
        made[name] = under.add_parser(
            name,
            help=text,
            description=f"{name}: {text}.",
            epilog=_EPILOG if name == "upload" else None,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        _add_common_options(made[name])
        if name == chosen:
            _module(name).add_options(made[name])
    return parser, made


def _add_common_options(parser: ArgumentParser) -> None:
    parser.add_argument("--project", required=True, metavar="ID", help="the project")
    parser.add_argument("--location", required=True, metavar="NAME", help="the location, such as us-central1")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--dry-run", action="store_true", help="print the calls without making them")
    shown.add_argument("--gcloud", action="store_true", help="print the calls as shell commands without making them")
    parser.add_argument("--api-endpoint", default="", metavar="URL", help="address of the API; http:// for an emulator")
    parser.add_argument(
        "--timeout-secs", type=float, default=_LIMIT_S, metavar="S", help=f"limit for a call; default: {_LIMIT_S:g}"
    )


def _unknown(argument: str, parser: ArgumentParser) -> str:
    name = argument.partition("=")[0]
    if not name.startswith("-"):
        return f"Unexpected argument: {argument}"
    known = _OPTION.findall(parser.format_help())
    return f'Bad option: "{name}".\nunknown option{nearest(name, known)}'


_BAD_USAGE = 2
# The packages that the SDK installs.
_SDK = ("google", "requests")


def run(
    arguments: Sequence[str],
    out: TextIO,
    errors: TextIO,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run a command line. The exit status is 0 for success, 1 for a failed call, 2 for a bad command line."""
    try:
        options = read_options(arguments)
        at = context(options, now())
        plan = Plan(_module(options.action).steps(options, at))
        if options.dry_run:
            print("\n\n".join(shown(call) for call in plan.calls()), file=out)
            return 0
        if options.gcloud:
            from deploy.vertex.gcloud import shell_command

            for call in plan.calls():
                wait = f"sleep {call.after_s:g}\n" if call.after_s else ""
                print(f"# {call.title}\n{wait}{shell_command(call, at.place, at.api)}", file=out)
            return 0
        from deploy.vertex.clients import Clients

        return 1 if plan.apply(Clients(at.api, options.timeout_secs).make, out, sleep) else 0
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SDK:
            raise
        print("error: Google's SDK is missing: pip install 'google-cloud-aiplatform>=2.7,<3'", file=errors)
        return _BAD_USAGE
    except BadOption as error:
        print(f"error: {error}", file=errors)
        return _BAD_USAGE
    except (CallFailed, CheckFailed) as error:
        print(f"error: {error}", file=errors)
        return 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], sys.stdout, sys.stderr))
