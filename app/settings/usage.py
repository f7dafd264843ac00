"""The help texts of the command `trident`. Those of options are in their rows, beside the command that takes them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from importlib import import_module
from itertools import groupby

from trident.adapters.common.options import BadOption, Kind, Option
from trident.app.emulators import EMULATE_LINES, EMULATE_USAGE
from trident.app.settings.groups import PLATFORMS, UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS

# The command lines, each with what it does.
COMMAND_LINES = (
    ("serve REPO|FILE [options]", "serve the models of a repository, or a model as it is"),
    ("import SOURCE [options]", "make a model in a repository from what another program wrote"),
    ("init NAME", "write a Python model that serves, to begin with"),
    ("validate REPO [REPO ...]", "print every problem of every model, without a server"),
    ("doctor REPO [options]", "print whether this machine can serve the models, and cures"),
    ("request MODEL [URL]", "print a request to a model of a server, ready to be copied"),
    ("status [URL]", "print how a server and its models are, and what they did"),
    ("top [URL]", "the same again and again, as it changes"),
    ("openapi [PLATFORM]", "print the OpenAPI document of the routes"),
    ("bench MODEL [options]", "put load on a model, measure it, and compare two servers"),
    ("tune MODEL --repository=REPO --p99=20ms", "find how to run a model for a latency"),
    *EMULATE_LINES,
    ("trace FILE", "show the requests of a trace file as trees, with their times"),
    ("completion bash|zsh|fish", "print a script by which the shell completes these commands"),
    ("version", "print the version, as trident --version does"),
    ("--help", "print this, or after a command its options"),
)
USAGE = "Usage: "
USAGE += "       ".join(f"trident {line:<39}  {what}\n" for line, what in COMMAND_LINES)
USAGE += "\nOptions without a command mean serve, so that a tritonserver command line works unchanged.\n"

_PLATFORMS = [each.name for each in PLATFORMS]
_IMPORT = """\
Usage: trident import [options] SOURCE

Makes a model in a repository from a file or folder of another program, runs it once, compares its answer with that of
the original where that can run here, and prints a request that works. A source is a path, or s3://bucket/key,
gs://bucket/key or as://account/container/key. These are recognised, by what is in them:

  ONNX; TorchScript; packages of torch.export and AOTInductor (.pt2); SavedModel; OpenVINO IR; TensorRT plans;
  XGBoost, LightGBM and Treelite files; CatBoost; pickles of scikit-learn and of these (joblib, pkl, skops);
  MLflow folders; TorchServe archives (.mar); Hugging Face folders with an ONNX model; folders of BentoML, KServe and
  MLServer with one model; models and repositories of Triton

Exits with status 1 if the model does not load, fails, or answers otherwise than the original.
"""
_INIT = """\
Usage: trident init [options] NAME

Writes a Python model called NAME: model.py, config.pbtxt and a golden request. It serves as it stands, and with
`trident serve models --reload` each change of it within a second.
"""
_VALIDATE = """\
Usage: trident validate [options] REPO [REPO ...]

Prints every problem of every model as path, message and hint; exits with status 1 if there is one, otherwise 0. A
repository is a folder, s3://bucket/prefix, gs://bucket/prefix or as://account/container/prefix.
"""
_DOCTOR = """\
Usage: trident doctor [--json] [REPO ...] [options of serve]
       trident doctor [--json] [--metrics-port=integer] URL ...

Checks this machine for a server with these options, and prints a line for each check, with a cure unless it is ok:
credentials, region, proxy, clock and calls of S3 and Cloud Storage; the models of each repository; memory and disk;
cores, open files and other limits; the ports; the GPUs and their libraries. It starts no server. Exits with status 1 if
a check has failed; a warning alone leaves it 0. No secret is printed.

With a URL, such as http://localhost:8000, it asks the server that runs there: whether it lives and is ready, and if not
why, its version, its clock, its models with their requests and times, and its metrics.

  --json  the report as JSON: the counts `failed` and `warnings`, and `lines`

All options of `trident serve --help` have the same meaning here. Without a repository the machine alone is checked.
"""
_REQUEST = """\
Usage: trident request [options] MODEL [URL]

Prints a request to a model of the server at URL, by default http://localhost:8000, made from what the model takes: it
works as it stands. Any server of Triton's protocol will do. If the variable TOKEN is set, its value is sent as a bearer
token, and the request reads it from there as well.
"""
_STATUS = """\
Usage: trident status [options] [URL]

Prints whether the server at URL, by default http://localhost:8000, is ready, and if not why; and for each version of a
model its state, and since the start of the server the requests, failures, mean latency, share of the time in the queue
and mean batch size. Any server of Triton's protocol will do. Exits with status 0 if the server is ready, otherwise 1.
If the variable TOKEN is set, its value is sent as a bearer token.
"""
_TOP = """\
Usage: trident top [options] [URL]

Prints what `trident status` does for the time since the page before, again and again: on a terminal in place, until
Ctrl-C. An arrow marks the slowest model.
"""
_OPENAPI = f"""\
Usage: trident openapi [{"|".join(_PLATFORMS)}] [options of serve]

Prints the OpenAPI 3.1 document of the routes of the HTTP port, or of a platform's port, without a server. The settings
are those that serve would have with these options and variables. A server has its own at /v2/docs/openapi.json, and
one for each model.
"""
_BENCH = """\
Usage: trident bench MODEL [--url=URL] [options]                 load on a server that runs
       trident bench MODEL --repository=REPO [options]           a server is started for it
       trident bench MODEL --url=FIRST --url=SECOND [options]    both in 20 turns, and the difference
       trident bench --compare BEFORE.json AFTER.json

Measures a model of any server of Triton's protocol at several loads; prints a table, the knee, and what a difference is
worth; writes bench-MODEL.json and bench-MODEL.html. Ctrl-C keeps what was measured. If the variable TOKEN is set, its
value is sent as a bearer token.
"""
_TUNE = """\
Usage: trident tune MODEL --repository=REPO --p99=20ms [options]

Finds the backend, instances, threads, batch size, queue delay and padding with which a model answers most requests
while 99 of 100 keep the latency. Each way is measured in a server of its own with a copy of the model; the model and
servers that run are not touched. Writes MODEL-tuned/config.pbtxt, with the reasons as comments, tune.html and
tune.json. Ctrl-C keeps what was measured.
"""
_TRACE = """\
Usage: trident trace [options] FILE

Prints each request of a trace file, of this server or of Triton, as a tree: a line for each model and each part of its
work, with its duration and a bar that shows when in the request it was. The server may still be writing the file.
"""
_COMPLETION = """\
Usage: trident completion bash|zsh|fish

Prints a script by which the shell completes the commands, options and values of trident, and the paths of repositories.

  bash: trident completion bash > ~/.local/share/bash-completion/completions/trident
        (with the package bash-completion; otherwise have ~/.bashrc source the file)
  zsh:  trident completion zsh > FOLDER/_trident, where FOLDER is in $fpath before compinit is called
  fish: trident completion fish > ~/.config/fish/completions/trident.fish
"""

# Of each command its text, and where its options are in app/commands.
_TEXTS = {
    "import": (_IMPORT, "import_model.ACCEPTED"),
    "init": (_INIT, "import_model.INIT_OPTIONS"),
    "validate": (_VALIDATE, "validate.ACCEPTED"),
    "doctor": (_DOCTOR, ""),
    "request": (_REQUEST, "request.ACCEPTED"),
    "status": (_STATUS, "overview.STATUS_OPTIONS"),
    "top": (_TOP, "overview.TOP_OPTIONS"),
    "openapi": (_OPENAPI, ""),
    "bench": (_BENCH, "bench.ACCEPTED"),
    "tune": (_TUNE, "tune.ACCEPTED"),
    "emulate": (EMULATE_USAGE, ""),
    "trace": (_TRACE, "trace.ACCEPTED"),
    "completion": (_COMPLETION, ""),
}


def usage(command: str, topic: str = "") -> str:
    """The text of `trident COMMAND --help=TOPIC`; for any other word that of `trident --help`.

    Only the options of serve have topics, see `HELP_TOPIC`; raises BadOption for another.
    """
    if command == "serve" or (command == "doctor" and topic):
        return serve_usage(topic)
    text, _ = _TEXTS.get(command, (USAGE, ""))
    options = options_of(command)
    return f"{text}\n{_table(options)}" if options else text


def options_of(command: str) -> tuple[Option, ...]:
    """The options of a command that has none of serve's; imports its module."""
    module, _, name = _TEXTS.get(command, ("", ""))[1].partition(".")
    options: tuple[Option, ...] = getattr(import_module(f"trident.app.commands.{module}"), name) if module else ()
    return options


def _table(options: Iterable[Option]) -> str:
    """The options with their texts beside them."""
    rows = {f"--{each.flag}={each.kind.name}" if each.takes_value else f"--{each.flag}": each for each in options}
    width = min(32, max(map(len, rows)))
    lines = []
    for spelling, each in rows.items():
        first, margin = f"  {spelling:<{width}}  ", " " * (width + 4)
        if len(spelling) > width:
            lines.append(f"  {spelling}")
            first = margin
        text = each.help + (" Repeatable." if each.repeatable else "")
        lines += textwrap.wrap(text, _WIDE, initial_indent=first, subsequent_indent=margin, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


# --- serve

_WIDTH, _WIDE = 100, 120
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
    """The text of each group of options, by the word for --help."""
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
"""What `--help=` of serve takes."""
