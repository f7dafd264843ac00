"""The plans of the actions: the calls that create, change and delete the resources of a deployment, in order.

Immutable resources are created before the old ones are deleted, so a plan that stops halfway leaves a working endpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deploy.sagemaker.errors import BadSettings, Kind
from deploy.sagemaker.model import EndpointConfig, Model
from deploy.sagemaker.plan import INSERVICE_LIMIT_S, Answer, Call, Plan, Wait, content_names, tagged
from deploy.sagemaker.scaling import Alarms, alarm_names, no_scaling
from deploy.sagemaker.transform import TransformJob

_LEAST_LIMIT_S = 600
_MOST_LIMIT_S = 28800
_MOST_STEP_PERCENT = 50
_LEAST_LINEAR_PERCENT = 10


class Shift(StrEnum):
    CANARY = "canary"
    LINEAR = "linear"
    ALL_AT_ONCE = "all-at-once"


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A rollout in which `step_percent` of the capacity shifts first (canary) or at every step (linear).

    `step_secs` pass between two steps. After the last one the old instances stay for `bake_secs`, so that a rollback is
    quick. `alarms` trigger a rollback at any time until then.
    """

    shift: Shift = Shift.CANARY
    step_percent: int = 10
    step_secs: int = 300
    bake_secs: int = 300
    alarms: tuple[str, ...] = ()

    def parameters(self, kind: Kind) -> dict[str, Any] | None:
        """The DeploymentConfig; None for serverless, which has none. Raises BadSettings."""
        if kind is Kind.SERVERLESS:
            return None
        routing: dict[str, Any] = {
            "Type": self.shift.replace("-", "_").upper(),
            "WaitIntervalInSeconds": self.step_secs,
        }
        size = {"Type": "CAPACITY_PERCENT", "Value": self._checked_percent()}
        if self.shift is Shift.CANARY:
            routing["CanarySize"] = size
        elif self.shift is Shift.LINEAR:
            routing["LinearStepSize"] = size
        policy = {
            "TrafficRoutingConfiguration": routing,
            "TerminationWaitInSeconds": self.bake_secs,
            "MaximumExecutionTimeoutInSeconds": self.longest_secs,
        }
        found: dict[str, Any] = {"BlueGreenUpdatePolicy": policy}
        if self.alarms:
            found["AutoRollbackConfiguration"] = {"Alarms": [{"AlarmName": name} for name in self.alarms]}
        return found

    @property
    def longest_secs(self) -> int:
        """The longest duration in seconds: all steps, the bake time, and half an hour for instances to start."""
        steps = -(-100 // max(1, self.step_percent)) if self.shift is Shift.LINEAR else 2
        return min(_MOST_LIMIT_S, max(_LEAST_LIMIT_S, steps * self.step_secs + self.bake_secs + 1800))

    def _checked_percent(self) -> int:
        least = _LEAST_LINEAR_PERCENT if self.shift is Shift.LINEAR else 1
        if self.shift is not Shift.ALL_AT_ONCE and not least <= self.step_percent <= _MOST_STEP_PERCENT:
            raise BadSettings(f"--step-percent is {self.step_percent}", hint=f"{least} to {_MOST_STEP_PERCENT}")
        return self.step_percent


IN_SERVICE = "InService"
_CHANGING = ("Creating", "Updating", "SystemUpdating", "RollingBack")
_CONFIG = "EndpointConfigName"


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Whether a plan waits for its result, and for how long at most."""

    waits: bool = True
    limit_s: float = INSERVICE_LIMIT_S


def create(
    model: Model, config: EndpointConfig, alarms: Alarms | None, tags: list[dict[str, str]], waiting: Waiting
) -> Plan:
    names = {"EndpointName": model.endpoint, _CONFIG: config.name}
    return (
        model.call(tags),
        config.call(tags),
        _sagemaker("CreateEndpoint", **names, **tagged(tags)),
        *(alarms.calls(tags) if alarms else ()),
        *_in_service(config, waiting),
    )


def update(
    model: Model,
    config: EndpointConfig,
    alarms: Alarms | None,
    rollout: Rollout,
    tags: list[dict[str, str]],
    waiting: Waiting,
    *,
    keeps_instance_count: bool = False,
    deletes_previous: bool = False,
) -> Plan:
    """The plan of an update. `keeps_instance_count`: keep the number that autoscaling has set."""
    same = "the endpoint already has this configuration: nothing to update"
    before = Wait(
        call=_sagemaker("DescribeEndpoint", EndpointName=model.endpoint),
        status="EndpointStatus",
        until=IN_SERVICE,
        going_on=_CHANGING,
        limit_s=waiting.limit_s,
        refused={_CONFIG: (config.name, same)},
    )
    parameters: dict[str, Any] = {"EndpointName": model.endpoint, _CONFIG: config.name}
    deployment = rollout.parameters(model.kind)
    if deployment is not None:
        parameters["DeploymentConfig"] = deployment
    if keeps_instance_count:
        parameters["RetainAllVariantProperties"] = True
        parameters["ExcludeRetainedVariantProperties"] = [{"VariantPropertyType": "DataCaptureConfig"}]
    patient = Waiting(waits=waiting.waits or deletes_previous, limit_s=max(waiting.limit_s, rollout.longest_secs))
    return (
        before,
        *([_previous_config()] if deletes_previous else []),
        model.call(tags),
        config.call(tags),
        *(alarms.calls(tags) if alarms else ()),
        _sagemaker("UpdateEndpoint", **parameters),
        *_in_service(config, patient),
        *(_delete_previous(model, config) if deletes_previous else ()),
    )


def transform(model: Model, job: TransformJob, tags: list[dict[str, str]], waiting: Waiting) -> Plan:
    done = Wait(
        call=_sagemaker("DescribeTransformJob", TransformJobName=job.name),
        status="TransformJobStatus",
        until="Completed",
        going_on=("InProgress", "Stopping"),
        limit_s=waiting.limit_s,
    )
    return model.call(tags), job.call(tags), *((done,) if waiting.waits else ())


def delete(endpoint: str, waiting: Waiting) -> Plan:
    """Delete everything that any plan here may have created for `endpoint`, including the rest of earlier updates.

    The endpoint is deleted before its configurations, and these before their models. Missing resources are skipped. If
    the endpoint cannot be deleted, the plan ends, because its configuration must stay as well.
    """
    alarms = Answer("DescribeAlarms", "MetricAlarms[].AlarmName", each=True)
    gone = Wait(
        call=_sagemaker("DescribeEndpoint", EndpointName=endpoint),
        status="EndpointStatus",
        until=None,
        going_on=("Deleting",),
        limit_s=waiting.limit_s,
    )
    return (
        *no_scaling(endpoint, best_effort=True),
        _best_effort("cloudwatch", "DescribeAlarms", AlarmNames=alarm_names(endpoint)),
        _best_effort("cloudwatch", "DeleteAlarms", AlarmNames=[alarms]),
        *_delete_listed(
            endpoint, "TransformJob", "StopTransformJob", "TransformJobSummaries", StatusEquals="InProgress"
        ),
        _best_effort("sagemaker", "DeleteEndpoint", EndpointName=endpoint),
        gone,
        *_delete_listed(endpoint, "EndpointConfig", "DeleteEndpointConfig", "EndpointConfigs"),
        *_delete_listed(endpoint, "Model", "DeleteModel", "Models"),
    )


def _in_service(config: EndpointConfig, waiting: Waiting) -> Sequence[Wait]:
    """The wait for the new configuration. A rollback also ends in service, but with the previous configuration."""
    if not waiting.waits:
        return ()
    return (
        Wait(
            call=_sagemaker("DescribeEndpoint", EndpointName=config.endpoint),
            status="EndpointStatus",
            until=IN_SERVICE,
            going_on=_CHANGING,
            limit_s=waiting.limit_s,
            expected={_CONFIG: config.name},
        ),
    )


def _previous_config() -> Call:
    return _sagemaker("DescribeEndpointConfig", **{_CONFIG: Answer("DescribeEndpoint", _CONFIG)})


def _delete_previous(model: Model, config: EndpointConfig) -> Sequence[Call]:
    """Delete the previous configuration, and its model unless the new one uses it; only if a plan here created them."""
    ours = content_names(model.endpoint)
    described = "DescribeEndpointConfig"
    old = Answer(described, f"[{_CONFIG}]", each=True, matching=f"(?!{config.name}$){ours}")
    models = Answer(described, "ProductionVariants[].ModelName", each=True, matching=f"(?!{model.name}$){ours}")
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
