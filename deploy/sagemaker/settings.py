"""Turns the flags of a command line into the model, the configuration and the plan of the action."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from deploy.sagemaker.endpoint import Rollout, Shift, Waiting, create, delete, transform, update
from deploy.sagemaker.errors import BadSettings, Kind
from deploy.sagemaker.model import Capture, EndpointConfig, Instances, Model, Network, Queue, Serverless
from deploy.sagemaker.plan import INSERVICE_LIMIT_S, Plan, checked_name, content_name
from deploy.sagemaker.scaling import Alarms, Metric, Scaling, no_scaling
from deploy.sagemaker.smoke import Form, Request, Smoke
from deploy.sagemaker.transform import STRATEGIES, Records, TransformJob

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


# Without BINARY: its reader needs the content type of the response, and a queued call only leaves an object in S3.
_QUEUED_FORMS = (Form.V2, Form.INSTANCES, Form.CSV)


def plan_of(given: argparse.Namespace, now: datetime) -> Plan:
    """The plan of every action except smoke. `now` distinguishes jobs with equal content. Raises BadSettings."""
    name = checked_name(given.name)
    if given.action == "delete":
        return delete(name, Waiting(limit_s=given.wait_secs))
    if given.action == "scale":
        return no_scaling(name) if given.off else _scaling(given).plan()
    waiting = Waiting(waits=not given.no_wait, limit_s=given.wait_secs)
    if Kind(given.kind) is Kind.BATCH:
        return _transform(given, waiting, now)
    model, alarms, tags = _model(given), _alarms(given), _tags(given)
    config = _config(given, model.name)
    if given.action == "create":
        return create(model, config, alarms, tags, waiting)
    return update(
        model,
        config,
        alarms,
        _rollout(given, alarms),
        tags,
        waiting,
        keeps_instance_count=given.keep_instance_count,
        deletes_previous=given.delete_previous,
    )


def smoke_of(given: argparse.Namespace) -> Smoke:
    """The smoke test that a command line asks for. Raises BadSettings."""
    kind = Kind(given.kind)
    return Smoke(
        endpoint=given.name,
        kind=kind,
        request=Request.read(given.request),
        forms=given.form or (_QUEUED_FORMS if kind is Kind.ASYNC else tuple(Form)),
        target_model=given.target_model,
        limit_s=given.wait_secs,
    )


def _model(given: argparse.Namespace) -> Model:
    return Model(
        endpoint=given.name,
        kind=Kind(given.kind),
        image=given.image,
        role=given.role,
        data=given.model_data,
        environment=_pairs("--env", given.env),
        network=Network(
            subnets=tuple(given.subnet),
            security_groups=tuple(given.security_group),
            is_isolated=given.network_isolation,
        ),
        caches_models=not given.no_model_cache,
    )


def _config(given: argparse.Namespace, model_name: str) -> EndpointConfig:
    kind = Kind(given.kind)
    return EndpointConfig(
        endpoint=given.name,
        kind=kind,
        model_name=model_name,
        capacity=_serverless(given) if kind is Kind.SERVERLESS else _instances(given),
        capture=_capture(given),
        queue=_queue(given) if kind is Kind.ASYNC else None,
    )


def _instances(given: argparse.Namespace) -> Instances:
    return Instances(
        instance_type=_needed(given, "instance_type", "such as ml.c6i.xlarge"),
        count=given.instance_count,
        volume_gb=given.volume_gb,
        download_secs=given.download_secs,
        startup_secs=given.startup_secs,
        ami=given.ami,
        routing=given.routing,
    )


def _serverless(given: argparse.Namespace) -> Serverless:
    if given.instance_type:
        raise BadSettings("a serverless endpoint has no --instance-type", hint="give it --memory-mb")
    return Serverless(
        memory_mb=given.memory_mb, max_concurrency=given.max_concurrency, provisioned=given.provisioned_concurrency
    )


def _capture(given: argparse.Namespace) -> Capture | None:
    if not given.capture_to:
        return None
    return Capture(
        destination=given.capture_to,
        percent=given.capture_percent,
        json_types=tuple(given.capture_json_type),
        kms_key=given.kms_key,
    )


def _queue(given: argparse.Namespace) -> Queue:
    return Queue(
        output=_needed(given, "output", "s3://BUCKET/PREFIX for the responses"),
        failures=given.failures,
        success_topic=given.success_topic,
        error_topic=given.error_topic,
        invocations_per_instance=given.invocations_per_instance,
    )


def _alarms(given: argparse.Namespace) -> Alarms | None:
    if given.no_alarms:
        return None
    return Alarms(
        endpoint=given.name,
        kind=Kind(given.kind),
        errors=given.alarm_errors,
        latency_ms=given.alarm_latency_ms,
        topics=tuple(given.alarm_topic),
    )


def _rollout(given: argparse.Namespace, alarms: Alarms | None) -> Rollout:
    return Rollout(
        shift=given.shift,
        step_percent=given.step_percent,
        step_secs=given.step_secs,
        bake_secs=given.bake_secs,
        alarms=tuple(given.rollback_alarm) or (alarms.names_for_rollback() if alarms else ()),
    )


def _scaling(given: argparse.Namespace) -> Scaling:
    return Scaling(
        endpoint=given.name,
        kind=Kind(given.kind),
        least=given.min,
        most=given.max,
        target=given.target,
        metric=given.metric,
        in_cooldown_secs=given.in_cooldown_secs,
        out_cooldown_secs=given.out_cooldown_secs,
    )


def _transform(given: argparse.Namespace, waiting: Waiting, now: datetime) -> Plan:
    model = _model(given)
    records = Records(
        content_type=given.content_type,
        accept=given.accept,
        split=given.split,
        assemble=given.assemble,
        compression=given.compression,
        strategy=given.strategy,
        input_filter=given.input_filter,
        output_filter=given.output_filter,
        join=given.join,
    )
    job = TransformJob(
        name=given.job_name or content_name(given.name, {"model": model.name, "at": now.isoformat()}),
        model_name=model.name,
        source=_needed(given, "input", "s3://BUCKET/PREFIX with the objects to transform"),
        source_type=given.input_type,
        output=_needed(given, "output", "s3://BUCKET/PREFIX for the responses"),
        instance_type=_needed(given, "instance_type", "such as ml.c6i.xlarge"),
        instance_count=given.instance_count,
        records=records,
        max_payload_mb=given.max_payload_mb,
        max_concurrent=given.max_concurrent,
        invocation_timeout_secs=given.invocation_timeout_secs,
        invocation_retries=given.invocation_retries,
        kms_key=given.kms_key,
    )
    return transform(model, job, _tags(given), waiting)


def _tags(given: argparse.Namespace) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in _pairs("--tag", given.tag).items()]


def _pairs(flag: str, texts: list[str]) -> dict[str, str]:
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise BadSettings(f"{flag} is '{text}'", hint="it takes NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _needed(given: argparse.Namespace, name: str, hint: str) -> str:
    value: str = getattr(given, name)
    if not value:
        raise BadSettings(f"--kind {given.kind} needs --{name.replace('_', '-')}", hint=hint)
    return value
