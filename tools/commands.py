"""The commands beside `serve`: their lines in the usage, their help, and by name the functions that run them.

Importing this module imports none of them: the server finds a command by its name.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from trident.adapters.common.options import Option
from trident.app.settings.groups import PLATFORMS
from trident.core.errors import Unsupported, installation

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
credentials, region, proxy, clock and calls of S3 and Cloud Storage; the models of each repository; memory; the disks of
the model cache, the log and the traces; cores, open files and other limits; the ports; the GPUs and their libraries. It
starts no server. Exits with status 1 if a check has failed; a warning alone leaves it 0. No secret is printed.

With a URL, such as http://localhost:8000, it asks the server that runs there: whether it lives and is ready, and if not
why, its version, its clock, its models with their requests and times, its metrics, and what it was started without.

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
Ctrl-C. An arrow marks a model that takes a second, or ten times the median.
"""
_OPENAPI = f"""\
Usage: trident openapi [{"|".join(each.name for each in PLATFORMS)}] [options of serve]

Prints the OpenAPI 3.1 document of the routes of the HTTP port, or of a platform's port, without a server. The settings
are those that serve would have with these options and variables. A server has its own at /v2/docs/openapi.json, and
one for each model.
"""
_BENCH = """\
Usage: trident bench MODEL [--url=URL] [options]                 load on a server that runs
       trident bench MODEL --repository=REPO [options]           a server is started for it
       trident bench MODEL --url=FIRST --url=SECOND [options]    both in 20 turns, and the difference
       trident bench --compare BEFORE.json AFTER.json
       trident bench [MODEL] --replay LOG [--url=URL [--url=URL]] [--speed=N]

Measures a model of any server of Triton's protocol at several loads; prints a table, the knee, and what a difference is
worth; writes bench-MODEL.json and bench-MODEL.html. Ctrl-C keeps what was measured. If the variable TOKEN is set, its
value is sent as a bearer token. --replay sends the requests of a log of --payload-log at their recorded times, and
lists the answers that differ from the log's, or from those of the first of two servers; then the status is 1.
"""
_TUNE = """\
Usage: trident tune MODEL --repository=REPO --p99=20ms [options]

Finds the backend, instances, threads, batch size, queue delay and padding with which a model answers most requests
while 99 of 100 keep the latency. Each way is measured in a server of its own with a copy of the model; the model and
servers that run are not touched. Writes MODEL-tuned/config.pbtxt, with the reasons as comments, tune.html and
tune.json. Ctrl-C keeps what was measured.
"""
_EMULATE = """\
Usage: trident emulate sagemaker [--multi-model] [options] MODEL
       trident emulate sagemaker --batch=INPUT --output=DIR [options] MODEL
       trident emulate vertex [options] GS_URI_OR_DIR [-- ARGUMENT ...]
       trident emulate vertex --batch=INPUT --output=DIR [options] GS_URI_OR_DIR [-- ARGUMENT ...]
       trident emulate azureml [options] DIR [-- ARGUMENT ...]

Starts the server as the platform starts a container, with the platform's API in front of it, on this machine only. It
enforces the platform's limits on both sides. A file that `trident import` knows is served as a model. At the end
(Ctrl-C) it prints the exceeded limits, and exits with status 1 if there are any, otherwise 0.
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


class Command(NamedTuple):
    """`lines` are those of the usage, with summaries; `function` and `options` are `module.NAME` in this package.

    The options are a table, or tables below their headings.
    """

    lines: tuple[tuple[str, str], ...]
    help: str
    function: str
    options: str = ""


def _command(line: str, summary: str, help: str, function: str, options: str = "") -> Command:
    return Command(((line, summary),), help, function, options)


_EMULATE_LINES = (
    ("emulate sagemaker MODEL", "run a SageMaker endpoint on this machine, to try a model"),
    ("emulate vertex MODEL", "the same for Vertex AI and its batch prediction"),
    ("emulate azureml MODEL", "the same for Azure ML"),
)
COMMANDS = {
    "import": _command(
        "import SOURCE [options]",
        "make a model in a repository from what another program wrote",
        _IMPORT,
        "importing.command.import_model",
        "importing.command.ACCEPTED",
    ),
    "init": _command(
        "init NAME",
        "write a Python model that serves, to begin with",
        _INIT,
        "importing.command.init",
        "importing.command.INIT_OPTIONS",
    ),
    "validate": _command(
        "validate REPO [REPO ...]",
        "print every problem of every model, without a server",
        _VALIDATE,
        "validate.validate",
        "validate.ACCEPTED",
    ),
    "doctor": _command(
        "doctor REPO [options]", "print whether this machine can serve the models, and cures", _DOCTOR, "doctor.doctor"
    ),
    "request": _command(
        "request MODEL [URL]",
        "print a request to a model of a server, ready to be copied",
        _REQUEST,
        "request.request",
        "request.ACCEPTED",
    ),
    "status": _command(
        "status [URL]",
        "print how a server and its models are, and what they did",
        _STATUS,
        "overview.status",
        "overview.STATUS_OPTIONS",
    ),
    "top": _command(
        "top [URL]", "the same again and again, as it changes", _TOP, "overview.top", "overview.TOP_OPTIONS"
    ),
    "openapi": _command("openapi [PLATFORM]", "print the OpenAPI document of the routes", _OPENAPI, "request.openapi"),
    "bench": _command(
        "bench MODEL [options]",
        "put load on a model, measure it, and compare two servers",
        _BENCH,
        "bench.command.bench",
        "bench.command.ACCEPTED",
    ),
    "tune": _command(
        "tune MODEL --repository=REPO --p99=20ms",
        "find how to run a model for a latency",
        _TUNE,
        "bench.tune.tune",
        "bench.tune.ACCEPTED",
    ),
    "emulate": Command(_EMULATE_LINES, _EMULATE, "emulators.command.emulate", "emulators.command.OPTIONS"),
    "trace": _command(
        "trace FILE",
        "show the requests of a trace file as trees, with their times",
        _TRACE,
        "trace.trace",
        "trace.ACCEPTED",
    ),
    "completion": _command(
        "completion bash|zsh|fish",
        "print a script by which the shell completes these commands",
        _COMPLETION,
        "completion.completion",
    ),
}


NAMES = ("serve", *COMMANDS, "version")


def usage_lines() -> list[tuple[str, str]]:
    """The command lines that work in this installation, each with what it does."""
    return [
        ("serve REPO|FILE [options]", "serve the models of a repository, or a model as it is"),
        *(line for name, command in COMMANDS.items() if is_installed(name) for line in command.lines),
        ("version", "print the version, as trident --version does"),
        ("--help", "print this, or after a command its options"),
    ]


def usage() -> str:
    text = "       ".join(f"trident {line:<39}  {summary}\n" for line, summary in usage_lines())
    return (
        f"Usage: {text}\nOptions without a command mean serve, so that a tritonserver command line works unchanged.\n"
    )


def run(command: str, arguments: Sequence[str]) -> int:
    """Run a command of COMMANDS. Returns the exit status; raises BadOption, ServerError."""
    _check_installed(command)
    status: int = _imported(COMMANDS[command].function)(arguments)
    return status


def help_of(command: str) -> str:
    """The text of `trident COMMAND --help`."""
    _check_installed(command)
    tables = options_of(command)
    parts = [COMMANDS[command].help]
    if isinstance(tables, dict):
        parts += [text for heading, options in tables.items() for text in (f"{heading}\n", _table(options))]
    elif tables:
        parts.append(_table(tables))
    return "\n".join(parts)


def options_of(command: str) -> Any:
    """The options of a command that has none of serve's, or its tables by their headings; imports its module."""
    return _imported(COMMANDS[command].options) if COMMANDS[command].options else ()


def is_installed(command: str) -> bool:
    """False for the commands that an image of production leaves out."""
    module = COMMANDS[command].function.rpartition(".")[0]
    return Path(__file__).parent.joinpath(f"{module.replace('.', '/')}.py").exists()


def _check_installed(command: str) -> None:
    if not is_installed(command):
        raise Unsupported(
            f"`trident {command}` is not part of this image, which serves models",
            hint=f"install the project where you work with models: {installation('cpu')}",
        )


def _imported(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"trident.tools.{module}"), attribute)


def _table(options: Iterable[Option]) -> str:
    rows = {f"--{each.flag}={each.kind.name}" if each.takes_value else f"--{each.flag}": each for each in options}
    width = min(32, max(map(len, rows)))
    lines = []
    for spelling, each in rows.items():
        first, margin = f"  {spelling:<{width}}  ", " " * (width + 4)
        if len(spelling) > width:
            lines.append(f"  {spelling}")
            first = margin
        text = each.help + (" Repeatable." if each.repeatable else "")
        lines += textwrap.wrap(text, 120, initial_indent=first, subsequent_indent=margin, break_on_hyphens=False)
    return "\n".join(lines) + "\n"
