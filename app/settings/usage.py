"""The help of `trident serve`. The texts of options are in their rows; tools/commands.py has the other commands."""

from __future__ import annotations

import textwrap
from itertools import groupby

from trident.adapters.common.options import BadOption, Kind, Option
from trident.app.settings.groups import PLATFORMS, UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS

_WIDTH = 100
_SERVE_HEAD = """\
Usage: trident serve [options] REPO [REPO ...]
       trident serve --model-repository=REPO [options]
       trident serve --help=GROUP

Each REPO is a model repository, as with --model-repository; or a file or folder that `trident import` takes, which is
served as the one model of a repository that ends with the server.
Options are given as --name=value or --name value; a name may be shortened as long as it is unique. The variable next to
an option sets it too; the command line overrides it. The variable of a repeatable option takes several values,
separated by semicolons or line breaks.
""" + "".join(f"{each.help}\n" for each in PLATFORMS if each.help)
# The options that most command lines have, in the order of a reader's questions.
_COMMON = (
    "model-repository",
    "single-model",
    "model-control-mode",
    "load-model",
    "exit-on-error",
    "http-port",
    "grpc-port",
    "metrics-port",
    "http-address",
    "http-workers",
    "backend-config",
    "cache-config",
    "error-hints",
    "log-verbose",
    "log-access",
)
_ALL = "all"
_COMPATIBILITY = "Accepted for compatibility with tritonserver, without effect"
_WITHOUT_EFFECT = "without-effect"


def serve_usage(topic: str = "") -> str:
    """The text of `trident serve --help`: the common options and the groups; with a `topic` one group, or all."""
    groups = _groups()
    if topic and topic != _ALL and topic not in groups:
        raise BadOption.of("--help", f"there is no group '{topic}'; the groups are {', '.join(groups)} and {_ALL}")
    if topic == _ALL:
        return "\n".join([_SERVE_HEAD, *groups.values()])
    if topic:
        return groups[topic]
    flags = {each.flag: each for each in SERVER_OPTIONS.values()}
    common = "Common options\n" + "".join(_entry(flags[name]) for name in _COMMON)
    more = "All options\n" + _filled(f"--help={_ALL}, or those of one group with --help=GROUP: {', '.join(groups)}")
    return "\n".join([_SERVE_HEAD, common, more])


def _groups() -> dict[str, str]:
    groups: dict[str, str] = {}
    for section, options in groupby(SERVER_OPTIONS.values(), key=lambda each: each.section):
        groups[section.lower().replace(" ", "-")] = f"{section}\n" + "".join(_entry(each) for each in options)
    names = ", ".join(f"--{each.flag}" for each in UNUSED_OPTIONS)
    return {**groups, _WITHOUT_EFFECT: f"{_COMPATIBILITY}\n{_filled(names)}"}


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False) + "\n"


def _entry(option: Option) -> str:
    notes = [option.variable] if option.flag else []
    if option.repeatable:
        notes.append("repeatable")
    elif option.default_text:
        notes.append(f"default {option.default_text}")
    note = f" ({'; '.join(notes)})" if notes else ""
    indent = " " * 6
    text = textwrap.fill(
        option.help + note, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return f"  {option.spelling}\n{text}\n"


HELP_TOPIC = Kind("group", str, (*_groups(), _ALL))
"""The values of `--help=` of serve."""
