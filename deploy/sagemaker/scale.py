"""`scale`: between `--min` and `--max` instances, or for serverless endpoints warm concurrent calls."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from deploy.sagemaker.aws import VARIANT, Aws, BadSettings, Unknown
from deploy.sagemaker.create import BACKLOG, CALLS
from deploy.sagemaker.options import METRICS, Kind

AUTOSCALING = "application-autoscaling"
_FROM_ZERO_COOLDOWN_S = 300


def scale(aws: Aws, given: Namespace) -> None:
    """`--target` is the value of the metric per instance: for an asynchronous endpoint the number of waiting calls, for
    a serverless one the share of warm capacity in use.
    """
    if given.off:
        stop_scaling(aws, given.name)
        return
    is_serverless = given.kind is Kind.SERVERLESS
    if given.target <= 0 or (is_serverless and given.target >= 1):
        wanted = "it must be a share, such as 0.7" if is_serverless else "it must be above 0"
        raise BadSettings(f"--target is {given.target:g}", hint=wanted)
    dimension = "DesiredProvisionedConcurrency" if is_serverless else "DesiredInstanceCount"
    target = {**_variant(given.name), "ScalableDimension": f"sagemaker:variant:{dimension}"}
    aws.call(AUTOSCALING, "RegisterScalableTarget", {**target, "MinCapacity": given.min, "MaxCapacity": given.max})

    def policy(name: str, kind: str, configuration: dict[str, Any]) -> Any:
        configured = {"PolicyType": f"{kind}Scaling", f"{kind}ScalingPolicyConfiguration": configuration}
        parameters = {**target, "PolicyName": f"{given.name}-{name}", **configured}
        stand_in = {"PolicyARN": Unknown("<PolicyARN of PutScalingPolicy>")}
        return aws.call(AUTOSCALING, "PutScalingPolicy", parameters, stand_in=stand_in)

    tracking: dict[str, Any] = {
        "TargetValue": given.target,
        "ScaleInCooldown": given.in_cooldown_secs,
        "ScaleOutCooldown": given.out_cooldown_secs,
    }
    if given.kind is Kind.ASYNC:
        tracking["CustomizedMetricSpecification"] = {
            "MetricName": "ApproximateBacklogSizePerInstance",
            "Namespace": CALLS,
            "Dimensions": [{"Name": "EndpointName", "Value": given.name}],
            "Statistic": "Average",
        }
    else:
        metric = "SageMakerVariantProvisionedConcurrencyUtilization" if is_serverless else METRICS[given.metric]
        tracking["PredefinedMetricSpecification"] = {"PredefinedMetricType": metric}
    policy("target", "TargetTracking", tracking)
    if given.kind is Kind.ASYNC and given.min == 0:
        # Adds an instance when calls wait and none exists: the backlog per instance is undefined without instances.
        step = {
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Average",
            "Cooldown": _FROM_ZERO_COOLDOWN_S,
            "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
        }
        made = policy("from-zero", "Step", step)
        aws.call("cloudwatch", "PutMetricAlarm", backlog_alarm(given.name, [made["PolicyARN"]]))


def backlog_alarm(endpoint: str, actions: list[str]) -> dict[str, Any]:
    """The alarm for an asynchronous endpoint that has queued calls but no instance for two minutes."""
    return {
        "AlarmName": f"{endpoint}-{BACKLOG}",
        "AlarmDescription": f"{endpoint}: 1 while calls wait and no instance exists",
        "Namespace": CALLS,
        "MetricName": "HasBacklogWithoutCapacity",
        "Dimensions": [{"Name": "EndpointName", "Value": endpoint}],
        "Period": 60,
        "TreatMissingData": "missing",
        "Statistic": "Average",
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "EvaluationPeriods": 2,
        "DatapointsToAlarm": 2,
        "AlarmActions": actions,
    }


def stop_scaling(aws: Aws, endpoint: str, *, best_effort: bool = False) -> None:
    """Remove any scaling from the variant; this also removes its policies and their alarms."""
    variant = _variant(endpoint)
    listed = {"ServiceNamespace": variant["ServiceNamespace"], "ResourceIds": [variant["ResourceId"]]}
    stand_in = {"ScalableTargets": [{"ScalableDimension": Unknown("<each ScalableDimension>")}]}
    found = aws.call(AUTOSCALING, "DescribeScalableTargets", listed, stand_in=stand_in, best_effort=best_effort)
    for target in found.get("ScalableTargets", ()):
        parameters = {**variant, "ScalableDimension": target["ScalableDimension"]}
        aws.call(AUTOSCALING, "DeregisterScalableTarget", parameters, best_effort=best_effort)


def _variant(endpoint: str) -> dict[str, str]:
    """The endpoint's only variant, as Application Auto Scaling names it."""
    return {"ServiceNamespace": "sagemaker", "ResourceId": f"endpoint/{endpoint}/variant/{VARIANT}"}
