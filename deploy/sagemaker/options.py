"""The command line: `python -m deploy.sagemaker ACTION NAME …`."""

from __future__ import annotations

import argparse
from pathlib import Path

from deploy.sagemaker.kind import Kind
from deploy.sagemaker.plan import INSERVICE_LIMIT_S
from deploy.sagemaker.request_forms import Form
from deploy.sagemaker.rollout import Shift
from deploy.sagemaker.scaling import Metric
from deploy.sagemaker.transform_job import STRATEGIES

_ENDPOINTS = [kind.value for kind in Kind if kind.has_endpoint]
_CREATE = "create a model and an endpoint, or start a batch transform job"
_UPDATE = "deploy a new model or configuration to an endpoint, shifting its traffic in steps"
_SCALE = "scale the instances, or the warm capacity, with the load"
_SMOKE = "send one request in every form and compare the answers"
_DELETE = "delete everything that was created for an endpoint"


def parser() -> argparse.ArgumentParser:
    """The parser. It allows no abbreviations, so that a new flag does not change the meaning of an old script."""
    root = argparse.ArgumentParser(prog="python -m deploy.sagemaker", allow_abbrev=False)
    actions = root.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = _action(actions, "create", _CREATE)
    _add_kind(create, list(Kind))
    _add_model(create)
    _add_capacity(create)
    _add_alarms(create)
    _add_job(create)
    update = _action(actions, "update", _UPDATE)
    _add_kind(update, _ENDPOINTS)
    _add_model(update)
    _add_capacity(update)
    _add_alarms(update)
    _add_rollout(update)
    scale = _action(actions, "scale", _SCALE)
    _add_kind(scale, _ENDPOINTS)
    _add_scaling(scale)
    smoke = _action(actions, "smoke", _SMOKE)
    _add_kind(smoke, _ENDPOINTS)
    _add_smoke(smoke)
    _action(actions, "delete", _DELETE)
    return root


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    found = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
    found.add_argument("name", help="of the endpoint, or of the batch transform job's model")
    found.add_argument("--dry-run", action="store_true", help="print and check every call without making it")
    found.add_argument("--region", default="", help="AWS region; default: the SDK's")
    found.add_argument("--endpoint-url", default="", help="address of an emulator to use instead of AWS")
    found.add_argument("--wait-secs", type=float, default=INSERVICE_LIMIT_S, help="longest wait in seconds")
    return found


def _add_kind(found: argparse.ArgumentParser, kinds: list[str]) -> None:
    found.add_argument("--kind", choices=[str(kind) for kind in kinds], default=str(Kind.REAL_TIME))


def _add_model(found: argparse.ArgumentParser) -> None:
    found.add_argument("--no-wait", action="store_true", help="do not wait for the result of the calls")
    group = found.add_argument_group("model")
    group.add_argument("--image", required=True, help="image in ECR; by digest, a rebuilt one is a new model")
    group.add_argument("--role", required=True, help="ARN of the execution role")
    group.add_argument("--model-data", required=True, help="s3://…/model.tar.gz, or a prefix that ends with /")
    group.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the container")
    group.add_argument(
        "--tag", action="append", default=[], metavar="KEY=VALUE", help="a tag for every created resource"
    )
    group.add_argument("--subnet", action="append", default=[])
    group.add_argument("--security-group", action="append", default=[])
    group.add_argument("--network-isolation", action="store_true", help="the container has no network access")
    group.add_argument("--no-model-cache", action="store_true", help="multi-model: unload a model after each call")


def _add_capacity(found: argparse.ArgumentParser) -> None:
    group = found.add_argument_group("instances")
    group.add_argument("--instance-type", default="", help="such as ml.c6i.xlarge; not for serverless")
    group.add_argument("--instance-count", type=int, default=1)
    group.add_argument("--volume-gb", type=int, default=0)
    group.add_argument("--download-secs", type=int, default=0, help="time limit for downloading the model, 60 to 3600")
    group.add_argument("--startup-secs", type=int, default=0, help="time limit until /ping answers 200, 60 to 3600")
    group.add_argument("--ami", default="", help="version of the host image, which contains the GPU driver")
    group.add_argument("--routing", default="", help="LEAST_OUTSTANDING_REQUESTS or RANDOM")
    group = found.add_argument_group("data capture")
    group.add_argument("--capture-to", default="", help="s3:// prefix; turns data capture on")
    group.add_argument("--capture-percent", type=int, default=100)
    group.add_argument("--capture-json-type", action="append", default=[], help="an additional JSON content type")
    group.add_argument("--kms-key", default="", help="for captured data, or for the responses of a batch transform job")
    group = found.add_argument_group("serverless")
    group.add_argument("--memory-mb", type=int, default=2048)
    group.add_argument("--max-concurrency", type=int, default=5)
    group.add_argument("--provisioned-concurrency", type=int, default=0)
    group = found.add_argument_group("async")
    group.add_argument("--output", default="", help="s3:// prefix for responses, also of a batch transform job")
    group.add_argument("--failures", default="", help="s3:// prefix for errors")
    group.add_argument("--success-topic", default="", help="ARN of an SNS topic")
    group.add_argument("--error-topic", default="", help="ARN of an SNS topic")
    group.add_argument(
        "--invocations-per-instance", type=int, default=0, help="concurrent; default: the platform decides"
    )


def _add_alarms(found: argparse.ArgumentParser) -> None:
    group = found.add_argument_group("alarms")
    group.add_argument("--no-alarms", action="store_true", help="create no alarms and roll nothing back")
    group.add_argument("--alarm-errors", type=int, default=5, help="5xx responses per minute that raise the alarm")
    group.add_argument("--alarm-latency-ms", type=int, default=1000, help="limit for the 99th percentile")
    group.add_argument("--alarm-topic", action="append", default=[], help="ARN of an SNS topic to notify")


def _add_job(found: argparse.ArgumentParser) -> None:
    group = found.add_argument_group("batch")
    group.add_argument("--job-name", default="", help="default: NAME and a hash")
    group.add_argument("--input", default="", help="s3:// prefix, or a manifest")
    group.add_argument("--input-type", choices=["S3Prefix", "ManifestFile"], default="S3Prefix")
    group.add_argument("--content-type", default="text/csv", help="content type of the input")
    group.add_argument("--accept", default="", help="content type of the responses; default: that of the input")
    group.add_argument("--split", choices=["None", "Line", "RecordIO", "TFRecord"], default="Line")
    group.add_argument("--assemble", choices=["None", "Line"], default="Line")
    group.add_argument("--compression", choices=["None", "Gzip"], default="None")
    group.add_argument("--strategy", choices=list(STRATEGIES), default="MultiRecord")
    group.add_argument("--max-payload-mb", type=int, default=6)
    group.add_argument("--max-concurrent", type=int, default=0, help="concurrent bodies; 0: the container decides")
    group.add_argument("--invocation-timeout-secs", type=int, default=600)
    group.add_argument("--invocation-retries", type=int, default=3)
    group.add_argument("--input-filter", default="", help="JSONPath: the part of a record that the model gets")
    group.add_argument("--output-filter", default="", help="JSONPath: the part of record and response that is written")
    group.add_argument("--join", choices=["None", "Input"], default="None", help="write responses beside records")


def _add_rollout(found: argparse.ArgumentParser) -> None:
    group = found.add_argument_group("traffic")
    group.add_argument("--shift", choices=list(Shift), type=Shift, default=Shift.CANARY)
    group.add_argument("--step-percent", type=int, default=10, help="share of the first step, or of every step")
    group.add_argument("--step-secs", type=int, default=300, help="time between steps")
    group.add_argument("--bake-secs", type=int, default=300, help="time until the old instances are removed")
    group.add_argument("--rollback-alarm", action="append", default=[], help="default: those for errors and latency")
    group.add_argument("--keep-instance-count", action="store_true", help="keep the number that autoscaling has set")
    group.add_argument("--delete-previous", action="store_true", help="delete the old configuration and model")


def _add_scaling(found: argparse.ArgumentParser) -> None:
    group = found.add_argument_group("scaling")
    group.add_argument("--off", action="store_true", help="remove the scaling")
    group.add_argument("--min", type=int, default=1)
    group.add_argument("--max", type=int, default=1)
    group.add_argument("--metric", choices=list(Metric), type=Metric, default=Metric.INVOCATIONS)
    group.add_argument("--target", type=float, default=0.0, help="target of the metric per instance")
    group.add_argument("--in-cooldown-secs", type=int, default=300)
    group.add_argument("--out-cooldown-secs", type=int, default=60)


def _add_smoke(found: argparse.ArgumentParser) -> None:
    group = found.add_argument_group("request")
    group.add_argument("--request", type=Path, required=True, help="a file with v2 JSON, such as deploy/digits/6.json")
    group.add_argument("--form", action="append", choices=list(Form), type=Form, default=[], help="default: all forms")
    group.add_argument("--target-model", default="", help="key of an archive below the prefix of --model-data")
