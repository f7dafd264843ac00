"""The command line of `python -m deploy.vertex`."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, NoReturn

from app.settings.command_line import nearest
from app.settings.option import BadOption
from deploy.vertex.batch import add_batch_options, batch
from deploy.vertex.deployment import add_deploy_options, deploy
from deploy.vertex.place import Place
from deploy.vertex.plan import Steps
from deploy.vertex.removal import add_delete_options, delete
from deploy.vertex.shift import add_shift_options, shift
from deploy.vertex.smoke import add_smoke_options, smoke
from deploy.vertex.upload import add_upload_options, upload

PROGRAM = "python -m deploy.vertex"
_LIMIT_S = 7200.0
_OPTION = re.compile(r"--[a-z][a-z-]+")
_EPILOG = "What follows -- are arguments of the container, which is the server's command line."


class Circumstances(NamedTuple):
    """What an action may need beside its options. `api` is the API's address, with its scheme."""

    place: Place
    api: str
    now: datetime


class Action(NamedTuple):
    """Something that the command does: its options, and its plan."""

    help: str
    add_options: Callable[[ArgumentParser], None]
    steps: Callable[[Namespace, Circumstances], Steps]


ACTIONS = {
    "upload": Action("a model, or a new version of one", add_upload_options, lambda given, at: upload(given, at.place)),
    "deploy": Action(
        "a model to an endpoint, perhaps a new one",
        add_deploy_options,
        lambda given, at: deploy(given, at.place, at.now),
    ),
    "shift": Action(
        "traffic from one deployed model to another", add_shift_options, lambda given, at: shift(given, at.place)
    ),
    "smoke": Action(
        "calls of every kind through an endpoint", add_smoke_options, lambda given, at: smoke(given, at.place, at.api)
    ),
    "batch": Action("a batch prediction job", add_batch_options, lambda given, at: batch(given, at.place)),
    "delete": Action(
        "endpoints with all that is deployed there, and models",
        add_delete_options,
        lambda given, at: delete(given, at.place, at.now),
    ),
}


class _Parser(ArgumentParser):
    """Raises BadOption in place of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise BadOption(f"{message}\n{self.prog} --help lists what there is")


def read_options(arguments: Sequence[str]) -> Namespace:
    """The options; `action` is the name of one, and `container_arguments` what follows `--`. Raises BadOption."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    parser, actions = _parsers()
    options, others = parser.parse_known_args(given[:end])
    if others:
        raise BadOption(_unknown(others[0], actions[options.action]))
    options.container_arguments = given[end + 1 :]
    if options.container_arguments and options.action != "upload":
        raise BadOption("A container gets its arguments when its model is uploaded: what follows -- goes with upload")
    return options


def circumstances(options: Namespace, now: datetime) -> Circumstances:
    """Raises BadOption."""
    place = Place(options.project, options.location)
    api = options.api_endpoint or f"https://{place.host}"
    if not api.startswith(("http://", "https://")):
        raise BadOption.of("--api-endpoint", f"it takes https://HOST, or http://HOST of an emulator, not '{api}'")
    return Circumstances(place, api.rstrip("/"), now)


def _parsers() -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    parser = _Parser(prog=PROGRAM, description="Models on Vertex AI.", allow_abbrev=False)
    under = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    made: dict[str, ArgumentParser] = {}
    for name, action in ACTIONS.items():
        made[name] = under.add_parser(
            name,
            help=action.help,
            description=f"{name}: {action.help}.",
            epilog=_EPILOG if name == "upload" else None,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        _add_common_options(made[name])
        action.add_options(made[name])
    return parser, made


def _add_common_options(parser: ArgumentParser) -> None:
    parser.add_argument("--project", required=True, metavar="ID", help="the project")
    parser.add_argument("--location", required=True, metavar="NAME", help="the location, such as us-central1")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--dry-run", action="store_true", help="print the calls and make none")
    shown.add_argument("--gcloud", action="store_true", help="print them as commands of a shell and make none")
    parser.add_argument("--api-endpoint", default="", metavar="URL", help="of the API; http:// for an emulator")
    parser.add_argument(
        "--timeout-secs", type=float, default=_LIMIT_S, metavar="S", help=f"that a call may take; {_LIMIT_S:g}"
    )


def _unknown(argument: str, parser: ArgumentParser) -> str:
    name = argument.partition("=")[0]
    if not name.startswith("-"):
        return f"Unexpected argument: {argument}"
    known = _OPTION.findall(parser.format_help())
    return f'Bad option: "{name}".\nunknown option{nearest(name, known)}'
