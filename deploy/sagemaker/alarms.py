"""The CloudWatch alarms of an endpoint, which notify people and roll back updates.

Source: docs/spec/deploy.md section 8 "SageMaker side", docs/spec/sagemaker.md section A9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deploy.sagemaker.kind import Kind
from deploy.sagemaker.names import VARIANT, tagged
from deploy.sagemaker.plan import Call

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
