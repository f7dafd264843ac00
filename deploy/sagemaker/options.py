"""The command line."""

from __future__ import annotations

import argparse
from enum import StrEnum
from pathlib import Path
from typing import Any

from deploy.sagemaker.plan import INSERVICE_LIMIT_S, Kind
from deploy.smoke_forms import Form
from trident.adapters.sagemaker.settings import BatchStrategy
from trident.app.emulators.sagemaker.api_model import FREQUENCIES_S, read_settings_file
from trident.core.errors import ConfigInvalid


class Shift(StrEnum):
    CANARY = "canary"
    LINEAR = "linear"
    ALL_AT_ONCE = "all-at-once"


class Metrics(StrEnum):
    """How the server's metrics come to CloudWatch: the platform scrapes them, the log has them, or not at all."""

    SCRAPED = "scraped"
    EMBEDDED = "embedded"
    OFF = "off"


class Metric(StrEnum):
    """The metric that is kept at the target: calls per minute and instance, or concurrent calls per model."""

    INVOCATIONS = "invocations"
    CONCURRENCY = "concurrency"


STRATEGIES = ["".join(part.title() for part in each.value.split("_")) for each in BatchStrategy]
_COMMON = {
    "--dry-run": {"action": "store_true", "help": "print and check every call without making it"},
    "--region": {"default": "", "help": "AWS region; default: the SDK's"},
    "--endpoint-url": {"default": "", "help": "address of an emulator to use instead of AWS"},
    "--wait-secs": {"type": float, "default": INSERVICE_LIMIT_S, "help": "longest wait in seconds"},
}


def _flag(text: str) -> dict[str, Any]:
    return {"action": "store_true", "help": text}


def _text(text: str, default: str = "", **more: Any) -> dict[str, Any]:
    return {"default": default, "help": text, **more}


def _number(default: float, text: str = "") -> dict[str, Any]:
    return {"type": type(default), "default": default, "help": text or None}


def _several(text: str = "", metavar: str | None = None) -> dict[str, Any]:
    return {"action": "append", "default": [], "help": text or None, "metavar": metavar}


def _choice(values: list[Any], default: Any, text: str = "") -> dict[str, Any]:
    return {"choices": values, "type": type(default), "default": default, "help": text or None}


OPERATIONS = (
    "CreateModel",
    "CreateEndpointConfig",
    "CreateEndpoint",
    "UpdateEndpoint",
    "CreateInferenceComponent",
    "CreateTransformJob",
)


def _settings(path: str) -> dict[str, Any]:
    try:
        return read_settings_file(Path(path), OPERATIONS)
    except ConfigInvalid as error:
        raise argparse.ArgumentTypeError(f"{error.message}; {error.hint}" if error.hint else error.message) from None


_SETTINGS: dict[str, Any] = {
    "type": _settings,
    "default": {},
    "metavar": "FILE",
    "help": "JSON with further parameters of the API, by operation",
}
_GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "model": {
        "--no-wait": _flag("do not wait for the result of the calls"),
        "--image": {"required": True, "help": "image in ECR; by digest, a rebuilt one is a new model"},
        "--role": {"required": True, "help": "ARN of the execution role"},
        "--model-data": {"required": True, "help": "s3://…/model.tar.gz, or a prefix that ends with /"},
        "--env": _several("a variable of the container", "NAME=VALUE"),
        "--tag": _several("a tag for every created resource", "KEY=VALUE"),
        "--subnet": _several(),
        "--security-group": _several(),
        "--network-isolation": _flag("the container has no network access"),
        "--settings": _SETTINGS,
        "--no-model-cache": _flag("multi-model: unload a model after each call"),
    },
    "instances": {
        "--instance-type": _text("such as ml.c6i.xlarge; not for serverless"),
        "--instance-count": _number(1),
        "--volume-gb": _number(0),
        "--download-secs": _number(0, "time limit for downloading the model, 60 to 3600"),
        "--startup-secs": _number(0, "time limit until /ping answers 200, 60 to 3600"),
        "--ami": _text("version of the host image, which contains the GPU driver; default: one that runs --cuda"),
        "--cuda": _choice(["13", "12"], "13", "CUDA in the image, for instances with GPUs"),
        "--routing": _text("LEAST_OUTSTANDING_REQUESTS or RANDOM"),
    },
    "data capture": {
        "--capture-to": _text("s3:// prefix; turns data capture on"),
        "--capture-percent": _number(100),
        "--capture-json-type": _several("an additional JSON content type"),
        "--kms-key": _text("for captured data, or for the responses of a batch transform job"),
    },
    "serverless": {
        "--memory-mb": _number(2048),
        "--max-concurrency": _number(5),
        "--provisioned-concurrency": _number(0),
    },
    "async": {
        "--output": _text("s3:// prefix for responses, also of a batch transform job"),
        "--failures": _text("s3:// prefix for errors"),
        "--success-topic": _text("ARN of an SNS topic"),
        "--error-topic": _text("ARN of an SNS topic"),
        "--invocations-per-instance": _number(0, "concurrent; default: the platform decides"),
    },
    "metrics": {
        "--metrics": _choice(list(Metrics), Metrics.SCRAPED, "of the server, in CloudWatch"),
        "--metrics-secs": {"type": int, "choices": FREQUENCIES_S, "default": 60, "help": "interval of the scrapes"},
    },
    "components": {"--settings": {**_SETTINGS, "help": "the file that the inference components were created with"}},
    "alarms": {
        "--no-alarms": _flag("create no alarms and roll nothing back"),
        "--alarm-errors": _number(5, "5xx responses per minute that raise the alarm"),
        "--alarm-latency-ms": _number(1000, "limit for the 99th percentile"),
        "--alarm-topic": _several("ARN of an SNS topic to notify"),
    },
    "batch": {
        "--job-name": _text("default: NAME and a hash"),
        "--input": _text("s3:// prefix, or a manifest"),
        "--input-type": _choice(["S3Prefix", "ManifestFile"], "S3Prefix"),
        "--content-type": _text("content type of the input", "text/csv"),
        "--accept": _text("content type of the responses; default: that of the input"),
        "--split": _choice(["None", "Line", "RecordIO", "TFRecord"], "Line"),
        "--assemble": _choice(["None", "Line"], "Line"),
        "--compression": _choice(["None", "Gzip"], "None"),
        "--strategy": _choice(STRATEGIES, "MultiRecord"),
        "--max-payload-mb": _number(6),
        "--max-concurrent": _number(0, "concurrent bodies; 0: the container decides"),
        "--invocation-timeout-secs": _number(600),
        "--invocation-retries": _number(3),
        "--input-filter": _text("JSONPath: the part of a record that the model gets"),
        "--output-filter": _text("JSONPath: the part of record and response that is written"),
        "--join": _choice(["None", "Input"], "None", "write responses beside records"),
    },
    "traffic": {
        "--shift": _choice(list(Shift), Shift.CANARY),
        "--step-percent": _number(10, "share of the first step, or of every step"),
        "--step-secs": _number(300, "time between steps"),
        "--bake-secs": _number(300, "time until the old instances are removed"),
        "--rollback-alarm": _several("default: those for errors and latency"),
        "--keep-instance-count": _flag("keep the number that autoscaling has set"),
        "--delete-previous": _flag("delete the old configuration and model"),
    },
    "scaling": {
        "--off": _flag("remove the scaling"),
        "--min": _number(1),
        "--max": _number(1),
        "--metric": _choice(list(Metric), Metric.INVOCATIONS),
        "--target": _number(0.0, "target of the metric per instance"),
        "--in-cooldown-secs": _number(300),
        "--out-cooldown-secs": _number(60),
    },
    "request": {
        "--request": {
            "type": Path,
            "required": True,
            "help": "a file with v2 JSON, such as deploy/digits/6.json",
        },
        "--form": {"action": "append", "choices": list(Form), "type": Form, "default": [], "help": "default: all"},
        "--target-model": _text("key of an archive below the prefix of --model-data"),
    },
}
_CAPACITY = ("model", "instances", "data capture", "serverless", "async", "metrics", "alarms")
_ACTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "create": ("create a model and an endpoint, or start a batch transform job", (*_CAPACITY, "batch")),
    "update": (
        "deploy a new model or configuration to an endpoint, shifting its traffic in steps",
        (*_CAPACITY, "traffic"),
    ),
    "scale": ("scale the instances, or the warm capacity, with the load", ("scaling",)),
    "smoke": ("send one request in every form and compare the answers", ("request",)),
    "delete": ("delete everything that was created for an endpoint", ("components",)),
}


def parser() -> argparse.ArgumentParser:
    """The parser. It allows no abbreviations, so that a new flag does not change the meaning of an old script."""
    root = argparse.ArgumentParser(prog="python -m deploy.sagemaker", allow_abbrev=False)
    actions = root.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (text, groups) in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("name", help="of the endpoint, or of the batch transform job's model")
        for flag, given in _COMMON.items():
            action.add_argument(flag, **given)  # type: ignore[arg-type]
        if groups and name != "delete":
            kinds = [kind for kind in Kind if kind is not Kind.BATCH or name == "create"]
            action.add_argument("--kind", choices=kinds, type=Kind, default=Kind.REAL_TIME)
        for group in groups:
            options = action.add_argument_group(group)
            for flag, given in _GROUPS[group].items():
                options.add_argument(flag, **given)
    return root
