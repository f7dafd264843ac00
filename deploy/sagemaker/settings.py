"""Turns the flags of a command line into the model, the configuration and the plan of the action."""

from __future__ import annotations

import argparse
from datetime import datetime

from deploy.sagemaker.alarms import Alarms
from deploy.sagemaker.capture import Capture
from deploy.sagemaker.endpoint_config import EndpointConfig, Instances, Queue, Serverless
from deploy.sagemaker.errors import BadSettings
from deploy.sagemaker.kind import Kind
from deploy.sagemaker.model import Model, Network
from deploy.sagemaker.names import checked_name, content_name
from deploy.sagemaker.plan import Plan
from deploy.sagemaker.plans import Waiting, create, delete, transform, update
from deploy.sagemaker.request_forms import Form, Request
from deploy.sagemaker.rollout import Rollout
from deploy.sagemaker.scaling import Scaling, no_scaling
from deploy.sagemaker.smoke import Smoke
from deploy.sagemaker.transform_job import Records, TransformJob

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
