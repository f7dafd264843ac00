"""Application Auto Scaling of the endpoint's only variant.

Source: docs/spec/deploy.md section 4 "Scaling dimensions", "Predefined metrics" and "Async scale from 0".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deploy.sagemaker.alarms import backlog_alarm, put_alarm
from deploy.sagemaker.answer import Answer
from deploy.sagemaker.errors import BadSettings
from deploy.sagemaker.kind import Kind
from deploy.sagemaker.names import resource_id
from deploy.sagemaker.plan import Call

SERVICE = "application-autoscaling"
INSTANCES = "sagemaker:variant:DesiredInstanceCount"
PROVISIONED = "sagemaker:variant:DesiredProvisionedConcurrency"
_UTILIZATION = "SageMakerVariantProvisionedConcurrencyUtilization"
_FROM_ZERO_COOLDOWN_S = 300


class Metric(StrEnum):
    """The metric that is kept at the target: calls per minute and instance, or concurrent calls per model."""

    INVOCATIONS = "invocations"
    CONCURRENCY = "concurrency"


_PREDEFINED = {
    Metric.INVOCATIONS: "SageMakerVariantInvocationsPerInstance",
    Metric.CONCURRENCY: "SageMakerVariantConcurrentRequestsPerModelHighResolution",
}


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Scaling between `least` and `most` instances; for serverless endpoints, warm concurrent calls.

    `target` is the value of `metric` per instance. For an asynchronous endpoint it is the number of waiting calls per
    instance; for a serverless one, the share of warm capacity in use.
    """

    endpoint: str
    kind: Kind
    least: int
    most: int
    target: float
    metric: Metric = Metric.INVOCATIONS
    in_cooldown_secs: int = 300
    out_cooldown_secs: int = 60

    def plan(self) -> tuple[Call, ...]:
        """Raises BadSettings."""
        self._check()
        capacity = {"MinCapacity": self.least, "MaxCapacity": self.most}
        calls = [
            self._call("RegisterScalableTarget", **capacity),
            self._policy("target", "TargetTracking", self._tracking()),
        ]
        if self.kind is Kind.ASYNC and self.least == 0:
            calls += [
                self._policy("from-zero", "Step", self._step_from_zero()),
                put_alarm(backlog_alarm(self.endpoint, [Answer("PutScalingPolicy", "PolicyARN")])),
            ]
        return tuple(calls)

    def _check(self) -> None:
        if not self.kind.has_endpoint:
            raise BadSettings("a batch transform job does not scale", hint="give it --instance-count")
        if not 0 <= self.least <= self.most or self.most == 0:
            raise BadSettings(f"--min is {self.least} and --max {self.most}", hint="--min is at most --max")
        if self.least == 0 and self.kind is not Kind.ASYNC:
            raise BadSettings(f"--min is 0 and --kind {self.kind}", hint="only --kind async can scale to 0 instances")
        if self.target <= 0:
            raise BadSettings(f"--target is {self.target:g}", hint="it must be above 0")
        if self.kind is Kind.SERVERLESS and self.target >= 1:
            raise BadSettings(
                f"--target is {self.target:g}", hint="for a serverless endpoint it is a share, such as 0.7"
            )

    def _call(self, operation: str, **more: Any) -> Call:
        dimension = PROVISIONED if self.kind is Kind.SERVERLESS else INSTANCES
        target = {
            "ServiceNamespace": "sagemaker",
            "ResourceId": resource_id(self.endpoint),
            "ScalableDimension": dimension,
        }
        return Call(service=SERVICE, operation=operation, parameters={**target, **more})

    def _policy(self, name: str, kind: str, configuration: dict[str, Any]) -> Call:
        return self._call(
            "PutScalingPolicy",
            PolicyName=f"{self.endpoint}-{name}",
            PolicyType=f"{kind}Scaling",
            **{f"{kind}ScalingPolicyConfiguration": configuration},
        )

    def _tracking(self) -> dict[str, Any]:
        cooldowns = {"ScaleInCooldown": self.in_cooldown_secs, "ScaleOutCooldown": self.out_cooldown_secs}
        found: dict[str, Any] = {"TargetValue": float(self.target), **cooldowns}
        if self.kind is Kind.ASYNC:
            found["CustomizedMetricSpecification"] = {
                "MetricName": "ApproximateBacklogSizePerInstance",
                "Namespace": "AWS/SageMaker",
                "Dimensions": [{"Name": "EndpointName", "Value": self.endpoint}],
                "Statistic": "Average",
            }
        else:
            name = _UTILIZATION if self.kind is Kind.SERVERLESS else _PREDEFINED[self.metric]
            found["PredefinedMetricSpecification"] = {"PredefinedMetricType": name}
        return found

    def _step_from_zero(self) -> dict[str, Any]:
        """Add an instance when calls wait and none exists: the backlog per instance is undefined without instances."""
        return {
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Average",
            "Cooldown": _FROM_ZERO_COOLDOWN_S,
            "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
        }


def no_scaling(endpoint: str, *, best_effort: bool = False) -> tuple[Call, ...]:
    """Remove any scaling from the variant; this also removes its policies and their alarms."""
    target = {"ServiceNamespace": "sagemaker", "ResourceIds": [resource_id(endpoint)]}
    dimension = Answer("DescribeScalableTargets", "ScalableTargets[].ScalableDimension", each=True)
    parameters = {"ServiceNamespace": "sagemaker", "ResourceId": resource_id(endpoint), "ScalableDimension": dimension}
    return (
        Call(service=SERVICE, operation="DescribeScalableTargets", parameters=target, best_effort=best_effort),
        Call(service=SERVICE, operation="DeregisterScalableTarget", parameters=parameters, best_effort=best_effort),
    )
