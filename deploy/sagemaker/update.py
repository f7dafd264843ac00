"""`update`: a new model or configuration for an endpoint, shifting its traffic in steps.

Immutable resources are created before the old ones are deleted, so an update that stops halfway leaves a working
endpoint. Source: docs/spec/deploy.md section 4.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from deploy.sagemaker.aws import SAGEMAKER, Aws, DeployError, Unknown, given_values, is_ours
from deploy.sagemaker.create import (
    CHANGING,
    CONFIG,
    LATENCY,
    SERVER_ERRORS,
    config_parameters,
    make,
    model_parameters,
    put_alarms,
    wait_in_service,
)
from deploy.sagemaker.options import Kind
from trident.tools.emulators.sagemaker.api_model import merged

_LEAST_LIMIT_S, _MOST_LIMIT_S = 600, 28800


def update(aws: Aws, given: Namespace) -> None:
    model = model_parameters(given)
    config = config_parameters(given, model["ModelName"])
    endpoint = {"EndpointName": given.name}
    before = aws.wait("DescribeEndpoint", endpoint, "EndpointStatus", "InService", CHANGING, given.wait_secs)
    old = before.get(CONFIG, Unknown(f"<{CONFIG} of DescribeEndpoint>"))
    if old == config[CONFIG]:
        raise DeployError(
            f"{given.name}: the endpoint already has this configuration: nothing to update",
            hint="an image under the same tag is not a change: use its digest",
        )
    unused = Unknown("<ModelName of DescribeEndpointConfig>")
    described = {"ProductionVariants": [{"ModelName": unused}]}
    if given.delete_previous:
        described = aws.call(SAGEMAKER, "DescribeEndpointConfig", {CONFIG: old}, stand_in=described)
    make(aws, model, config)
    put_alarms(aws, given)
    parameters: dict[str, Any] = {**endpoint, CONFIG: config[CONFIG]}
    if given.kind is not Kind.SERVERLESS:
        parameters["DeploymentConfig"] = _rollout(given)
    if given.keep_instance_count:
        parameters["RetainAllVariantProperties"] = True
        parameters["ExcludeRetainedVariantProperties"] = [{"VariantPropertyType": "DataCaptureConfig"}]
    aws.call(SAGEMAKER, "UpdateEndpoint", merged(parameters, given.settings.get("UpdateEndpoint", {})))
    if not given.no_wait or given.delete_previous:
        wait_in_service(aws, given.name, config[CONFIG], max(given.wait_secs, _longest_rollout_secs(given)))
    if given.delete_previous and is_ours(old, given.name):
        aws.call(SAGEMAKER, "DeleteEndpointConfig", {CONFIG: old}, best_effort=True)
        for variant in described["ProductionVariants"]:
            name = variant.get("ModelName", "")
            if name != model["ModelName"] and is_ours(name, given.name):
                aws.call(SAGEMAKER, "DeleteModel", {"ModelName": name}, best_effort=True)


def _longest_rollout_secs(given: Namespace) -> int:
    """The longest duration in seconds: all steps, the bake time, and half an hour for instances to start."""
    steps = -(-100 // max(1, given.step_percent)) if given.shift == "linear" else 2
    whole: int = steps * given.step_secs + given.bake_secs + 1800
    return min(_MOST_LIMIT_S, max(_LEAST_LIMIT_S, whole))


def _rollout(given: Namespace) -> dict[str, Any]:
    """`--step-percent` of the capacity shifts first (canary) or at every step (linear). After the last step the old
    instances stay for a while, so that a rollback is quick; alarms trigger one at any time until then.
    """
    size = {"Type": "CAPACITY_PERCENT", "Value": given.step_percent}
    routing = {
        "Type": given.shift.replace("-", "_").upper(),
        "WaitIntervalInSeconds": given.step_secs,
        **given_values(
            CanarySize=size if given.shift == "canary" else None,
            LinearStepSize=size if given.shift == "linear" else None,
        ),
    }
    alarms = [{"AlarmName": f"{given.name}-{what}"} for what in (SERVER_ERRORS, LATENCY)]
    return {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": routing,
            "TerminationWaitInSeconds": given.bake_secs,
            "MaximumExecutionTimeoutInSeconds": _longest_rollout_secs(given),
        },
        **({} if given.no_alarms else {"AutoRollbackConfiguration": {"Alarms": alarms}}),
    }
