"""The help texts of the command `trident`."""

from __future__ import annotations

import textwrap
from itertools import groupby

from trident.adapters.common.options import BadOption, Kind, Option
from trident.app.emulators.usage import EMULATE_COMMANDS, EMULATE_USAGE
from trident.app.settings.groups import PLATFORMS, UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS

_WIDTH = 100

USAGE = """\
Usage: trident serve REPO|FILE [options]                serve the models of a repository, or a model as it is
       trident import SOURCE [options]                  make a model in a repository from what another program wrote
       trident init NAME                                write a Python model that serves, to begin with
       trident validate REPO [REPO ...]                 print every problem of every model, without a server
       trident doctor REPO [options]                    print whether this machine can serve the models, and cures
"""
USAGE += """\
       trident request MODEL [URL]                      print a request to a model of a server, ready to be copied
       trident status [URL]                             print how a server and its models are, and what they did
       trident top [URL]                                the same again and again, as it changes
       trident openapi [PLATFORM]                       print the OpenAPI document of the routes
       trident bench MODEL [options]                    put load on a model, measure it, and compare two servers
       trident tune MODEL --repository=REPO --p99=20ms  find how to run a model for a latency
"""
USAGE += EMULATE_COMMANDS
USAGE += """\
       trident trace FILE                               show the requests of a trace file as trees, with their times
       trident completion bash|zsh|fish                 print a script by which the shell completes these commands
       trident version                                  print the version, as trident --version does
       trident --help

Options without a command mean serve, so that a tritonserver command line works unchanged.
`trident serve --help`, `trident validate --help`, `trident doctor --help` and `trident emulate --help` list the options
of each command.
"""

VALIDATE_USAGE = """\
Usage: trident validate [options] REPO [REPO ...]

Prints every problem of every model as path, message and hint; exits with status 1 if there is one, otherwise 0. A
repository is a folder, s3://bucket/prefix, gs://bucket/prefix or as://account/container/prefix.

  --format=text|json                              default text
  --model-config-name=string                      use configs/<name>.pbtxt of a model if it exists
  --disable-auto-complete-config                  take each configuration as written
  --backend-config=[<backend>,]<setting>=<value>  repeatable; as for serve
  --model-cache-directory=string                  as for serve, and by default the same
  --model-cache-bytes=integer                     as for serve
"""

IMPORT_USAGE = """\
Usage: trident import [options] SOURCE

Makes a model in a repository from a file or folder of another program, runs it once, compares its answer with that of
the original where that can run here, and prints a request that works. A source is a path, or s3://bucket/key,
gs://bucket/key or as://account/container/key. These are recognised, by what is in them:

  ONNX; TorchScript; packages of torch.export and AOTInductor (.pt2); SavedModel; OpenVINO IR; TensorRT plans;
  XGBoost, LightGBM and Treelite files; CatBoost; pickles of scikit-learn and of these (joblib, pkl, skops);
  MLflow folders; TorchServe archives (.mar); Hugging Face folders with an ONNX model; folders of BentoML, KServe and
  MLServer with one model; models and repositories of Triton

  --name=string                   of the model; default as the source is called
  --repository=string             default models
  --dry-run                       show the files and the configuration, and make nothing
  --input=DATATYPE:SHAPE          FP32:1,16, the next argument of a model that does not say what it takes; repeatable
  --trust-pickle                  read pickles, and run the code of an archive: it can do all that you can
  --python=string                 the interpreter that has the source's framework; default this one
  --link                          link to the files instead of copying them
  --no-run                        neither run the model nor compare it
  --model-cache-directory=string  as for serve, and by default the same
  --model-cache-bytes=integer     as for serve

Exits with status 1 if the model does not load, fails, or answers otherwise than the original.
"""

INIT_USAGE = """\
Usage: trident init [--repository=models] NAME

Writes a Python model called NAME: model.py, config.pbtxt and a golden request. It serves as it stands, and with
`trident serve models --reload` each change of it within a second.
"""

DOCTOR_USAGE = """\
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

_PLATFORMS = [each.name for each in PLATFORMS]
REQUEST_USAGE = f"""\
Usage: trident request [options] MODEL [URL]

Prints a request to a model of the server at URL, by default http://localhost:8000, made from what the model takes: it
works as it stands. Any server of Triton's protocol will do. If the variable TOKEN is set, its value is sent as a bearer
token, and the request reads it from there as well.

  --form=FORM             curl (the default), curl-binary, http and grpc (Triton's clients for Python), perf-analyzer (a
                          file for its --input-data), or the SDK of a platform for Python: {", ".join(_PLATFORMS)}
  --shape=INPUT:1,16      the shape of an input as it is sent; also sends an optional input; repeatable
  --model-version=string  default the latest
  --grpc-url=HOST:PORT    of the gRPC port; default port 8001 of the host in URL
"""

STATUS_USAGE = """\
Usage: trident status [options] [URL]

Prints whether the server at URL, by default http://localhost:8000, is ready, and if not why; and for each version of a
model its state, and since the start of the server the requests, failures, mean latency, share of the time in the queue
and mean batch size. Any server of Triton's protocol will do. Exits with status 0 if the server is ready, otherwise 1.
If the variable TOKEN is set, its value is sent as a bearer token.

  --json        the same as JSON
  --sort=ORDER  requests (the default), latency, queue, failures or name
"""

TOP_USAGE = """\
Usage: trident top [options] [URL]

Prints what `trident status` does for the time since the page before, again and again: on a terminal in place, until
Ctrl-C. An arrow marks the slowest model.

  --interval=seconds  from one page to the next; default 2
  --count=integer     end after this many pages; default 0, never
  --sort=ORDER        requests (the default), latency, queue, failures or name
"""

OPENAPI_USAGE = f"""\
Usage: trident openapi [{"|".join(_PLATFORMS)}] [options of serve]

Prints the OpenAPI 3.1 document of the routes of the HTTP port, or of a platform's port, without a server. The settings
are those that serve would have with these options and variables. A server has its own at /v2/docs/openapi.json, and
one for each model.
"""

BENCH_USAGE = f"""\
Usage: trident bench MODEL [--url=URL] [options]                 load on a server that runs
       trident bench MODEL --repository=REPO [options]           a server is started for it
       trident bench MODEL --url=FIRST --url=SECOND [options]    both in 20 turns, and the difference
       trident bench --compare BEFORE.json AFTER.json

Measures a model of any server of Triton's protocol at several loads; prints a table, the knee, and what a difference is
worth; writes bench-MODEL.json and bench-MODEL.html. Ctrl-C keeps what was measured. If the variable TOKEN is set, its
value is sent as a bearer token.

  load
  --concurrency-range=START:END:STEP   requests under way; by default 1, 2, 4, ... until a doubling gains nothing
  --request-rate-range=START:END:STEP  requests sent in a second, however long answers take; a latency is counted from
                                       the time at which the request should have left
  --request-distribution=WORD          of the rate: constant (the default) or poisson
  --measurement-interval=ms, -p        of each level; default 5000
  --latency-threshold=ms, -l           a sweep ends above it; of the percentile --percentile, default 99
  --processes=integer                  of the client; default 1, and 2 from 8 cores

  requests
  --protocol=WORD, -i                  http (the default), grpc, or a platform's port: {", ".join(_PLATFORMS)}
  --streaming                          ModelStreamInfer; over HTTP generate_stream
  --input-data=random|zero|PATH        default random; or a JSON file with a v2 request, a golden one, or
                                       perf_analyzer's data; or a folder of such files, or of bytes named as inputs
  --input-tensor-format=WORD           binary (the default) or json; --output-tensor-format likewise
  --batch-size=integer, -b             items in a request; default 1
  --shape=INPUT:3,224,224              without the batch dimension; repeatable
  --header=NAME:VALUE, -H              repeatable
  --model-name, -m; --model-version, -x

  server
  --url=URL, -u                        default http://localhost:8000, localhost:8001 for gRPC
  --v2-url=URL                         port with configuration and statistics, if --url is a platform's

  files
  --output=FOLDER/NAME                 of the .json and .html; empty for none
  --latency-report-file=FILE, -f       CSV with the columns of perf_analyzer
"""

TUNE_USAGE = """\
Usage: trident tune MODEL --repository=REPO --p99=20ms [options]

Finds the backend, instances, threads, batch size, queue delay and padding with which a model answers most requests
while 99 of 100 keep the latency. Each way is measured in a server of its own with a copy of the model; the model and
servers that run are not touched. Writes MODEL-tuned/config.pbtxt, with the reasons as comments, tune.html and
tune.json. Ctrl-C keeps what was measured.

  --throughput=requests/s           that are enough: then the way that takes the fewest threads
  --budget=duration                 how long it may take; default 10m
  --memory=MB                       that a server may have
  --precision=same|lower            lower: also bfloat16 or FP16 where the answers stay near; default same
  --longest=integer                 that clients send of a variable dimension: lengths up to it may be padded
  --protocol=http|grpc              default http
  --input-data, --batch-size, --shape   as for `trident bench`
  --output=FOLDER                   default MODEL-tuned
"""

TRACE_USAGE = """\
Usage: trident trace [options] FILE

Prints each request of a trace file, of this server or of Triton, as a tree: a line for each model and each part of its
work, with its duration and a bar that shows when in the request it was. The server may still be writing the file.

  --request=string   only requests with this id
  --slowest=integer  only this many requests, those that took longest first
"""

COMPLETION_USAGE = """\
Usage: trident completion bash|zsh|fish

Prints a script by which the shell completes the commands, options and values of trident, and the paths of repositories.

  bash: trident completion bash > ~/.local/share/bash-completion/completions/trident
        (with the package bash-completion; otherwise have ~/.bashrc source the file)
  zsh:  trident completion zsh > FOLDER/_trident, where FOLDER is in $fpath before compinit is called
  fish: trident completion fish > ~/.config/fish/completions/trident.fish
"""

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


_USAGES = {
    "import": IMPORT_USAGE,
    "init": INIT_USAGE,
    "validate": VALIDATE_USAGE,
    "doctor": DOCTOR_USAGE,
    "request": REQUEST_USAGE,
    "status": STATUS_USAGE,
    "top": TOP_USAGE,
    "openapi": OPENAPI_USAGE,
    "bench": BENCH_USAGE,
    "tune": TUNE_USAGE,
    "emulate": EMULATE_USAGE,
    "trace": TRACE_USAGE,
    "completion": COMPLETION_USAGE,
}


def usage(command: str, topic: str = "") -> str:
    """The text of `trident COMMAND --help=TOPIC`; for any other word that of `trident --help`.

    Only the options of serve have topics, see `HELP_TOPIC`; raises BadOption for another.
    """
    if command == "serve" or (command == "doctor" and topic):
        return serve_usage(topic)
    return _USAGES.get(command, USAGE)


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
