"""The options of `python -m deploy.vertex`; with the standard library alone, so that --help needs no SDK."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

_ONLINE = "aiplatform.googleapis.com/prediction/online"
METRICS = {
    "cpu": f"{_ONLINE}/cpu/utilization",
    "accelerator": f"{_ONLINE}/accelerator/duty_cycle",
    "requests": f"{_ONLINE}/request_count",
}
PROBES = ("startup", "health")
_FORMATS = ("jsonl", "csv", "file-list", "tf-record", "tf-record-gzip", "bigquery")
_ARGUMENTS = "The arguments after -- are the arguments of the container: the command line of the server."


def parser() -> ArgumentParser:
    root = ArgumentParser(prog="python -m deploy.vertex", description="Models on Vertex AI.", allow_abbrev=False)
    under = root.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (text, add_options) in ACTIONS.items():
        epilog = _ARGUMENTS if name == "upload" else None
        made = under.add_parser(name, help=text, description=f"{name}: {text}.", epilog=epilog, allow_abbrev=False)
        made.add_argument("--project", required=True, metavar="ID", help="the project")
        made.add_argument("--location", required=True, metavar="NAME", help="the location, such as us-central1")
        made.add_argument("--dry-run", action="store_true", help="print the calls without making them")
        made.add_argument("--api-endpoint", default="", metavar="URL", help="address of the API; http://: an emulator")
        made.add_argument("--timeout-secs", type=float, default=7200.0, metavar="S", help="limit for a call")
        made.add_argument("--settings", type=Path, metavar="FILE", help="JSON with further parameters, by call")
        add_options(made)
    return root


def _upload(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model-id", metavar="ID", help="the id of a new model")
    which.add_argument("--parent-model", metavar="ID", help="the model that gets a new version")
    _several(parser, "--alias", "NAME", "alias of the version, such as canary")
    parser.add_argument("--no-default", action="store_true", help="keep the default version of the parent")
    _several(parser, "--label", "NAME=VALUE", "label of the model")
    parser.add_argument(
        "--service-account", default="", metavar="EMAIL", help="identity that reads image and artifacts"
    )
    parser.add_argument("--image", required=True, metavar="URI", help="image in Artifact Registry, same location")
    parser.add_argument("--artifact-uri", default="", metavar="GS_URI", help="the folder of one or several models")
    _several(parser, "--env", "NAME=VALUE", "a variable of the container")
    parser.add_argument("--grpc-port", type=int, default=0, metavar="N", help="gRPC port, for directRawPredict")
    parser.add_argument("--invoke-route-prefix", default="", metavar="/*", help="open every path")
    parser.add_argument(
        "--deployment-timeout", type=int, default=0, metavar="S", help="seconds until the container must be ready"
    )
    for name in PROBES:
        parser.add_argument(f"--{name}-probe", default="", metavar="PROBE", help="http:/PATH, tcp:PORT or exec:COMMAND")


def _deploy(parser: ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="ID[@VERSION]", help="the model; its default version")
    parser.add_argument("--endpoint", required=True, metavar="ID", help="the endpoint; with --new its id")
    parser.add_argument("--new", choices=["shared", "dedicated", "psc"], help="create an endpoint of this kind first")
    parser.add_argument("--ttl", metavar="SPAN", help="lifetime of a new endpoint: 4h, 7d, or none")
    parser.add_argument("--inference-timeout", type=int, default=0, metavar="S", help="time limit of a call in seconds")
    _several(parser, "--allow-project", "ID", "project that may connect by psc")
    _several(parser, "--label", "NAME=VALUE", "label of a new endpoint")
    parser.add_argument("--deployed-model-id", default="", metavar="N", help="default: the platform chooses")
    parser.add_argument("--all-traffic", action="store_true", help="move all traffic at once; implied by --new")
    parser.add_argument("--service-account", default="", metavar="EMAIL", help="identity of the container")
    _machine(parser, least="--min-replicas")
    parser.add_argument("--spot", action="store_true", help="cheaper machines that may be reclaimed at any time")
    text = f"scaling target: {' or '.join(METRICS)}; in percent, or requests per minute"
    _several(parser, "--autoscale", "METRIC=TARGET", text)


def _shift(parser: ArgumentParser) -> None:
    parser.add_argument("--endpoint", required=True, metavar="ID", help="the endpoint")
    parser.add_argument(
        "--traffic", action="append", required=True, metavar="DEPLOYED_ID=PERCENT", help="share of every deployed model"
    )
    parser.add_argument(
        "--keep", action="store_true", help="undeploy nothing, to be able to go back at the cost of the machines"
    )
    parser.add_argument("--drain-secs", type=float, default=60.0, metavar="S", help="wait before undeploying")


def _smoke(parser: ArgumentParser) -> None:
    parser.add_argument("--endpoint", required=True, metavar="ID", help="the endpoint")
    parser.add_argument("--request", required=True, type=Path, metavar="FILE", help="a v2 request in JSON")
    parser.add_argument("--address", default="", metavar="HOST", help="address of a psc endpoint in this network")


def _batch(parser: ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="ID[@VERSION]", help="the model")
    parser.add_argument("--name", required=True, metavar="TEXT", help="name of the job")
    parser.add_argument("--input", action="append", required=True, metavar="URI", help="gs:// files or a bq:// table")
    parser.add_argument("--output", required=True, metavar="URI", help="a gs:// folder or a bq:// data set")
    parser.add_argument("--format", required=True, choices=_FORMATS, help="format of the input")
    parser.add_argument("--instance-type", default="", choices=["array", "object"], help="the JSON form of an instance")
    parser.add_argument("--key-field", default="", metavar="NAME", help="identifies the instance and is not sent")
    parser.add_argument("--included-fields", default="", metavar="A,B", help="the fields to send, in this order")
    parser.add_argument("--parameters", default="", metavar="JSON", help="parameters of every request")
    parser.add_argument("--batch-size", type=int, default=0, metavar="N", help="instances per request; default: 64")
    parser.add_argument("--service-account", default="", metavar="EMAIL", help="identity of the container")
    _several(parser, "--label", "NAME=VALUE", "label of the job")
    parser.add_argument("--wait", action="store_true", help="wait until the job has ended")
    _machine(parser, least="--replicas")


def _delete(parser: ArgumentParser) -> None:
    _several(parser, "--endpoint", "ID", "an endpoint with its deployed models")
    _several(parser, "--model", "ID[@VERSION]", "a model or a version")
    parser.add_argument("--expired", action="store_true", help="every endpoint whose --ttl has ended")


def _machine(parser: ArgumentParser, *, least: str) -> None:
    """Add the options; `least` is the flag for the initial number of machines."""
    parser.add_argument("--machine-type", required=True, metavar="TYPE", help="such as n1-standard-4 or g2-standard-4")
    parser.add_argument("--accelerator", default="", metavar="TYPE[=N]", help="such as NVIDIA_L4=1")
    parser.add_argument(
        least, type=int, default=1, metavar="N", dest="least", help="initial number of machines; default: 1"
    )
    parser.add_argument(
        "--max-replicas", type=int, metavar="N", help="largest number of machines; default: the initial number"
    )


def _several(parser: ArgumentParser, flag: str, metavar: str, text: str) -> None:
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=text)


# By the name of each action, and of the module that does it: its help and its options.
ACTIONS = {
    "upload": ("a model, or a new version of a model", _upload),
    "deploy": ("a model to an existing or new endpoint", _deploy),
    "shift": ("traffic from one deployed model to another", _shift),
    "smoke": ("test calls of every kind through an endpoint", _smoke),
    "batch": ("a batch prediction job", _batch),
    "delete": ("endpoints with their deployed models, and models", _delete),
}
