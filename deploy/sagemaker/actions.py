"""The plans of the actions: the calls that create, change and delete the resources of a deployment, in order.

Immutable resources are created before the old ones are deleted, so a plan that stops halfway leaves a working endpoint.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from deploy.sagemaker.plan import (
    INSERVICE_LIMIT_S,
    Answer,
    BadSettings,
    Call,
    Kind,
    Plan,
    Step,
    Wait,
    checked_name,
    content_names,
    tagged,
)
from deploy.sagemaker.resources import (
    alarm_names,
    create_component,
    create_config,
    create_model,
    create_transform_job,
    longest_rollout_secs,
    no_scaling,
    put_alarms,
    rollout,
    scaling,
    tags_of,
)
from trident.app.emulators.sagemaker.api_model import merged

_IN_SERVICE = "InService"
_CHANGING = ("Creating", "Updating", "SystemUpdating", "RollingBack")
_CONFIG = "EndpointConfigName"
_COMPONENT_STATUS = "InferenceComponentStatus"


def plan_of(given: Namespace, now: datetime) -> Plan:
    """The plan of every action except smoke. `now` distinguishes jobs with equal content. Raises BadSettings."""
    name = checked_name(given.name)
    if given.action == "delete":
        component = given.settings.get("CreateInferenceComponent")
        return delete(name, given.wait_secs, component and component.get("InferenceComponentName", name))
    if given.action == "scale":
        return no_scaling(name) if given.off else scaling(given)
    if given.action == "update":
        return _update(given)
    return _transform(given, now) if given.kind is Kind.BATCH else _create(given)


def _alarms(given: Namespace) -> tuple[Call, ...]:
    if given.no_alarms:
        return ()
    tags = tags_of(given)
    return put_alarms(given.name, given.kind, tags, given.alarm_errors, given.alarm_latency_ms, given.alarm_topic)


def _create(given: Namespace) -> Plan:
    model = create_model(given)
    config = create_config(given, model.parameters["ModelName"])
    names = {"EndpointName": given.name, _CONFIG: config.parameters[_CONFIG], **tagged(tags_of(given))}
    return (
        model,
        config,
        _sagemaker("CreateEndpoint", **merged(names, given.settings.get("CreateEndpoint", {}))),
        *_alarms(given),
        *(() if given.no_wait else _in_service(config, given.name, given.wait_secs)),
        *_component(given, model.parameters["ModelName"]),
    )


def _component(given: Namespace, model_name: str) -> Sequence[Step]:
    """The inference component that the settings file asks for, which needs an endpoint in service."""
    if "CreateInferenceComponent" not in given.settings:
        return ()
    if given.no_wait:
        raise BadSettings("--no-wait with an inference component", hint="it is created when the endpoint is in service")
    made = create_component(given, model_name)
    serves = Wait(
        call=_described(made.parameters["InferenceComponentName"]),
        status=_COMPONENT_STATUS,
        until=_IN_SERVICE,
        going_on=("Creating", "Updating"),
        limit_s=given.wait_secs,
    )
    return made, serves


def _described(component: str) -> Call:
    return _sagemaker("DescribeInferenceComponent", InferenceComponentName=component)


def _update(given: Namespace) -> Plan:
    model = create_model(given)
    config = create_config(given, model.parameters["ModelName"])
    same = "the endpoint already has this configuration: nothing to update"
    before = Wait(
        call=_sagemaker("DescribeEndpoint", EndpointName=given.name),
        status="EndpointStatus",
        until=_IN_SERVICE,
        going_on=_CHANGING,
        limit_s=given.wait_secs,
        refused={_CONFIG: (config.parameters[_CONFIG], same)},
    )
    parameters: dict[str, Any] = {"EndpointName": given.name, _CONFIG: config.parameters[_CONFIG]}
    deployment = rollout(given)
    if deployment is not None:
        parameters["DeploymentConfig"] = deployment
    if given.keep_instance_count:
        parameters["RetainAllVariantProperties"] = True
        parameters["ExcludeRetainedVariantProperties"] = [{"VariantPropertyType": "DataCaptureConfig"}]
    limit_s = max(given.wait_secs, longest_rollout_secs(given))
    described = _sagemaker("DescribeEndpointConfig", **{_CONFIG: Answer("DescribeEndpoint", _CONFIG)})
    return (
        before,
        *([described] if given.delete_previous else []),
        model,
        config,
        *_alarms(given),
        _sagemaker("UpdateEndpoint", **merged(parameters, given.settings.get("UpdateEndpoint", {}))),
        *(() if given.no_wait and not given.delete_previous else _in_service(config, given.name, limit_s)),
        *(_delete_previous(given.name, model, config) if given.delete_previous else ()),
    )


def _transform(given: Namespace, now: datetime) -> Plan:
    model = create_model(given)
    job = create_transform_job(given, model.parameters["ModelName"], now.isoformat())
    done = Wait(
        call=_sagemaker("DescribeTransformJob", TransformJobName=job.parameters["TransformJobName"]),
        status="TransformJobStatus",
        until="Completed",
        going_on=("InProgress", "Stopping"),
        limit_s=given.wait_secs,
    )
    return model, job, *(() if given.no_wait else (done,))


def delete(endpoint: str, limit_s: float = INSERVICE_LIMIT_S, component: str | None = None) -> Plan:
    """Delete everything that any plan here may have created for `endpoint`, including the rest of earlier updates.

    `component` is its inference component, which has to be gone before the endpoint can be deleted. The endpoint is
    deleted before its configurations, and these before their models. Missing resources are skipped. If the endpoint
    cannot be deleted, the plan ends, because its configuration must stay as well.
    """
    alarms = Answer("DescribeAlarms", "MetricAlarms[].AlarmName", each=True)
    gone = Wait(
        call=_sagemaker("DescribeEndpoint", EndpointName=endpoint),
        status="EndpointStatus",
        until=None,
        going_on=("Deleting",),
        limit_s=limit_s,
    )
    return (
        *no_scaling(endpoint, best_effort=True),
        _best_effort("cloudwatch", "DescribeAlarms", AlarmNames=alarm_names(endpoint)),
        _best_effort("cloudwatch", "DeleteAlarms", AlarmNames=[alarms]),
        *_delete_listed(
            endpoint, "TransformJob", "StopTransformJob", "TransformJobSummaries", StatusEquals="InProgress"
        ),
        *(() if component is None else _delete_component(component, limit_s)),
        _best_effort("sagemaker", "DeleteEndpoint", EndpointName=endpoint),
        gone,
        *_delete_listed(endpoint, "EndpointConfig", "DeleteEndpointConfig", "EndpointConfigs"),
        *_delete_listed(endpoint, "Model", "DeleteModel", "Models"),
    )


def _delete_component(component: str, limit_s: float) -> Sequence[Step]:
    return (
        _best_effort("sagemaker", "DeleteInferenceComponent", InferenceComponentName=component),
        Wait(call=_described(component), status=_COMPONENT_STATUS, until=None, going_on=("Deleting",), limit_s=limit_s),
    )


def _in_service(config: Call, endpoint: str, limit_s: float) -> Sequence[Wait]:
    """The wait for the new configuration. A rollback also ends in service, but with the previous configuration."""
    return (
        Wait(
            call=_sagemaker("DescribeEndpoint", EndpointName=endpoint),
            status="EndpointStatus",
            until=_IN_SERVICE,
            going_on=_CHANGING,
            limit_s=limit_s,
            expected={_CONFIG: config.parameters[_CONFIG]},
        ),
    )


def _delete_previous(endpoint: str, model: Call, config: Call) -> Sequence[Call]:
    """Delete the previous configuration, and its model unless the new one uses it; only if a plan here created them."""
    ours, described = content_names(endpoint), "DescribeEndpointConfig"
    config_name, model_name = config.parameters[_CONFIG], model.parameters["ModelName"]
    old = Answer(described, f"[{_CONFIG}]", each=True, matching=f"(?!{config_name}$){ours}")
    models = Answer(described, "ProductionVariants[].ModelName", each=True, matching=f"(?!{model_name}$){ours}")
    return (
        _best_effort("sagemaker", "DeleteEndpointConfig", **{_CONFIG: old}),
        _best_effort("sagemaker", "DeleteModel", ModelName=models),
    )


def _delete_listed(endpoint: str, what: str, operation: str, members: str, **only: str) -> Sequence[Call]:
    """Delete all listed resources. The API also lists names of endpoints with longer names; those are left out."""
    name = f"{what}Name"
    found = Answer(f"List{what}s", f"{members}[].{name}", each=True, matching=content_names(endpoint))
    return (
        _best_effort("sagemaker", f"List{what}s", NameContains=endpoint, **only),
        _best_effort("sagemaker", operation, **{name: found}),
    )


def _sagemaker(operation: str, **parameters: Any) -> Call:
    return Call(service="sagemaker", operation=operation, parameters=parameters)


def _best_effort(service: str, operation: str, **parameters: Any) -> Call:
    return Call(service=service, operation=operation, parameters=parameters, best_effort=True)
