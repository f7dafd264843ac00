"""The options of `python -m deploy.sagemaker`; with the standard library alone, so that --help needs no SDK."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

Option = dict[str, Any]
METRICS = {
    "invocations": "SageMakerVariantInvocationsPerInstance",
    "concurrency": "SageMakerVariantConcurrentRequestsPerModelHighResolution",
}
_OPERATIONS = (
    "CreateModel",
    "CreateEndpointConfig",
    "CreateEndpoint",
    "UpdateEndpoint",
    "CreateInferenceComponent",
    "CreateTransformJob",
)
# The values of `smoke_forms.Form`, and of `MetricPublishFrequencyInSeconds` (api_model.FREQUENCIES_S).
_FORMS = ("v2", "binary", "instances", "csv")
_FREQUENCIES_S = (10, 30, 60, 120, 180, 240, 300)


class Kind(StrEnum):
    """Source: docs/spec/deploy.md section 4, docs/spec/sagemaker.md sections A5 and A6."""

    REAL_TIME = "real-time"
    MULTI_MODEL = "multi-model"
    ASYNC = "async"
    SERVERLESS = "serverless"
    BATCH = "batch"


def _settings(path: str) -> dict[str, Any]:
    from trident.core.errors import ConfigInvalid
    from trident.tools.emulators.sagemaker.api_model import read_settings_file

    try:
        return read_settings_file(Path(path), _OPERATIONS)
    except ConfigInvalid as error:
        raise argparse.ArgumentTypeError(f"{error.message}; {error.hint}" if error.hint else error.message) from None


def _flag(text: str) -> Option:
    return {"action": "store_true", "help": text}


def _text(text: str, default: str = "") -> Option:
    return {"default": default, "help": text}


def _number(default: float, text: str = "") -> Option:
    return {"type": type(default), "default": default, "help": text or None}


def _several(text: str, metavar: str | None = None) -> Option:
    return {"action": "append", "default": [], "help": text, "metavar": metavar}


def _choice(values: Sequence[str], default: str, text: str = "") -> Option:
    return {"choices": values, "default": default, "help": text or None}


_COMMON: dict[str, Option] = {
    "--dry-run": _flag("print and check every call without making it"),
    "--region": _text("AWS region; default: the SDK's"),
    "--endpoint-url": _text("address of an emulator to use instead of AWS"),
    "--wait-secs": _number(2400.0, "longest wait in seconds"),
}
_SETTINGS: dict[str, Option] = {
    "--settings": {
        "type": _settings,
        "default": {},
        "metavar": "FILE",
        "help": "JSON with further parameters of the API, by operation; delete: that of the inference component",
    }
}
_CAPACITY: dict[str, Option] = {
    "--no-wait": _flag("do not wait for the result of the calls"),
    "--image": {"required": True, "help": "image in ECR; by digest, a rebuilt one is a new model"},
    "--role": {"required": True, "help": "ARN of the execution role"},
    "--model-data": {"required": True, "help": "s3://…/model.tar.gz, or a prefix that ends with /"},
    "--env": _several("a variable of the container", "NAME=VALUE"),
    "--tag": _several("a tag for every created resource", "KEY=VALUE"),
    **_SETTINGS,
    "--instance-type": _text("such as ml.c6i.xlarge; not for serverless"),
    "--instance-count": _number(1),
    "--ami": _text("version of the host image, which contains the GPU driver; default: one that runs --cuda"),
    "--cuda": _choice(["13", "12"], "13", "CUDA in the image, for instances with GPUs"),
    "--capture-to": _text("s3:// prefix; turns data capture on"),
    "--capture-percent": _number(100),
    "--memory-mb": _number(2048, "serverless"),
    "--max-concurrency": _number(5, "serverless"),
    "--provisioned-concurrency": _number(0, "serverless"),
    "--output": _text("async and batch: s3:// prefix for responses"),
    "--error-topic": _text("async: ARN of an SNS topic"),
    "--metrics": _choice(["scraped", "embedded", "off"], "scraped", "of the server, in CloudWatch"),
    "--metrics-secs": {"type": int, "choices": _FREQUENCIES_S, "default": 60, "help": "interval of the scrapes"},
    "--no-alarms": _flag("create no alarms and roll nothing back"),
    "--alarm-errors": _number(5, "5xx responses per minute that raise the alarm"),
    "--alarm-latency-ms": _number(1000, "limit for the 99th percentile"),
    "--alarm-topic": _several("ARN of an SNS topic to notify"),
}
_BATCH: dict[str, Option] = {
    "--input": _text("batch: s3:// prefix"),
    "--content-type": _text("batch: content type of the input", "text/csv"),
    "--accept": _text("batch: content type of the responses; default: that of the input"),
    "--split": _choice(["None", "Line", "RecordIO", "TFRecord"], "Line", "batch"),
    "--assemble": _choice(["None", "Line"], "Line", "batch"),
}
_TRAFFIC: dict[str, Option] = {
    "--shift": _choice(["canary", "linear", "all-at-once"], "canary"),
    "--step-percent": _number(10, "share of the first step, or of every step"),
    "--step-secs": _number(300, "time between steps"),
    "--bake-secs": _number(300, "time until the old instances are removed"),
    "--keep-instance-count": _flag("keep the number that autoscaling has set"),
    "--delete-previous": _flag("delete the old configuration and model"),
}
_SCALING: dict[str, Option] = {
    "--off": _flag("remove the scaling"),
    "--min": _number(1),
    "--max": _number(1),
    "--metric": _choice(list(METRICS), "invocations"),
    "--target": _number(0.0, "target of the metric per instance"),
    "--in-cooldown-secs": _number(300),
    "--out-cooldown-secs": _number(60),
}
_REQUEST: dict[str, Option] = {
    "--request": {"type": Path, "help": "a file with v2 JSON, such as deploy/digits/6.json"},
    "--chat": _text("instead of --request: a text to send over the endpoint's OpenAI API"),
    "--component": _text("--chat: the inference component"),
    "--form": {"action": "append", "choices": _FORMS, "default": [], "help": "default: all"},
    "--target-model": _text("key of an archive below the prefix of --model-data"),
}
ACTIONS: dict[str, tuple[str, dict[str, Option]]] = {
    "create": ("create a model and an endpoint, or start a batch transform job", {**_CAPACITY, **_BATCH}),
    "update": (
        "deploy a new model or configuration to an endpoint, shifting its traffic in steps",
        {**_CAPACITY, **_TRAFFIC},
    ),
    "scale": ("scale the instances, or the warm capacity, with the load", _SCALING),
    "smoke": ("send one request in every form and compare the answers, or a chat", _REQUEST),
    "delete": ("delete everything that was created for an endpoint", _SETTINGS),
}


def parser() -> argparse.ArgumentParser:
    """The parser. It allows no abbreviations, so that a new flag does not change the meaning of an old script."""
    root = argparse.ArgumentParser(prog="python -m deploy.sagemaker", allow_abbrev=False)
    actions = root.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (text, options) in ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("name", help="of the endpoint, or of the batch transform job's model")
        if name != "delete":
            kinds = [kind for kind in Kind if kind is not Kind.BATCH or name == "create"]
            action.add_argument("--kind", choices=kinds, type=Kind, default=Kind.REAL_TIME)
        for flag, option in {**_COMMON, **options}.items():
            action.add_argument(flag, **option)
    return root
