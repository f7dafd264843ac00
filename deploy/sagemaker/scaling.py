"""Application Auto Scaling of the endpoint's only variant.

Source: docs/spec/deploy.md section 4 "Scaling dimensions", "Predefined metrics" and "Async scale from 0".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deploy.sagemaker.errors import BadSettings, Kind
from deploy.sagemaker.plan import VARIANT, Answer, Call, resource_id, tagged

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


# Source: docs/spec/deploy.md section 8 "SageMaker side", docs/spec/sagemaker.md section A9.


_CALLS = "AWS/SageMaker"
_MACHINES = "/aws/sagemaker/Endpoints"
_SERVER_ERRORS = "5xx"
_LATENCY = "latency-p99"
_CACHE_HITS = "cache-hits"
_DISK = "disk"
_BACKLOG = "backlog-without-capacity"
_ALL = (_SERVER_ERRORS, _LATENCY, _CACHE_HITS, _DISK, _BACKLOG)
_MINUTE = 60
_LEAST_CACHE_HITS = 0.8
# Data capture stops when the disk is nearly full.
_MOST_DISK_PERCENT = 75


@dataclass(frozen=True, kw_only=True)
class Alarms:
    """The alarms of an endpoint of `kind`. They notify the SNS topics `topics`.

    `errors` is the threshold of 5xx responses per minute; `latency_ms` is the limit for the 99th percentile of the time
    that calls spend in the container.
    """

    endpoint: str
    kind: Kind
    errors: int = 5
    latency_ms: int = 1000
    topics: tuple[str, ...] = ()

    def calls(self, tags: list[dict[str, str]]) -> tuple[Call, ...]:
        alarms = [self._server_errors(), self._latency()]
        if self.kind is Kind.MULTI_MODEL:
            alarms.append(self._cache_hits())
        if self.kind.has_instances:
            alarms.append(self._disk())
        return tuple(put_alarm({**alarm, **tagged(tags)}) for alarm in alarms)

    def names_for_rollback(self) -> tuple[str, ...]:
        return alarm_name(self.endpoint, _SERVER_ERRORS), alarm_name(self.endpoint, _LATENCY)

    def _server_errors(self) -> dict[str, Any]:
        return {
            **self._alarm(_SERVER_ERRORS, "Invocation5XXErrors", _CALLS, "5xx responses per minute"),
            "Statistic": "Sum",
            "Threshold": float(self.errors),
            "ComparisonOperator": "GreaterThanOrEqualToThreshold",
            "EvaluationPeriods": 3,
            "DatapointsToAlarm": 2,
        }

    def _latency(self) -> dict[str, Any]:
        return {
            **self._alarm(
                _LATENCY, "ModelLatency", _CALLS, "99th percentile of the time in the container, in microseconds"
            ),
            "ExtendedStatistic": "p99",
            "Threshold": self.latency_ms * 1000.0,
            "ComparisonOperator": "GreaterThanThreshold",
            "EvaluationPeriods": 3,
            "DatapointsToAlarm": 3,
        }

    def _cache_hits(self) -> dict[str, Any]:
        return {
            **self._alarm(_CACHE_HITS, "ModelCacheHit", _CALLS, "share of calls whose model was already loaded"),
            "Statistic": "Average",
            "Threshold": _LEAST_CACHE_HITS,
            "ComparisonOperator": "LessThanThreshold",
            "EvaluationPeriods": 10,
            "DatapointsToAlarm": 10,
        }

    def _disk(self) -> dict[str, Any]:
        return {
            **self._alarm(_DISK, "DiskUtilization", _MACHINES, "percent of the disk in use"),
            "Statistic": "Maximum",
            "Threshold": float(_MOST_DISK_PERCENT),
            "ComparisonOperator": "GreaterThanThreshold",
            "EvaluationPeriods": 5,
            "DatapointsToAlarm": 5,
        }

    def _alarm(self, what: str, metric: str, namespace: str, description: str) -> dict[str, Any]:
        dimensions = {"EndpointName": self.endpoint, "VariantName": VARIANT}
        return {
            **alarm(self.endpoint, what, metric, namespace, description, dimensions),
            "AlarmActions": list(self.topics),
            "OKActions": list(self.topics),
        }


def backlog_alarm(endpoint: str, actions: list[str]) -> dict[str, Any]:
    """The alarm for an asynchronous endpoint that has queued calls but no instance for two minutes."""
    description = "1 while calls wait and no instance exists"
    dimensions = {"EndpointName": endpoint}
    return {
        **alarm(endpoint, _BACKLOG, "HasBacklogWithoutCapacity", _CALLS, description, dimensions),
        "Statistic": "Average",
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "EvaluationPeriods": 2,
        "DatapointsToAlarm": 2,
        "TreatMissingData": "missing",
        "AlarmActions": actions,
    }


def alarm(
    endpoint: str, what: str, metric: str, namespace: str, description: str, dimensions: dict[str, str]
) -> dict[str, Any]:
    """The parameters that all alarms share: one value per minute; missing values, as without calls, raise no alarm."""
    return {
        "AlarmName": alarm_name(endpoint, what),
        "AlarmDescription": f"{endpoint}: {description}",
        "Namespace": namespace,
        "MetricName": metric,
        "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
        "Period": _MINUTE,
        "TreatMissingData": "notBreaching",
    }


def put_alarm(parameters: dict[str, Any]) -> Call:
    return Call(service="cloudwatch", operation="PutMetricAlarm", parameters=parameters)


def alarm_name(endpoint: str, what: str) -> str:
    return f"{endpoint}-{what}"


def alarm_names(endpoint: str) -> list[str]:
    """The names of all alarms that a deployment may have created."""
    return [alarm_name(endpoint, what) for what in _ALL]
