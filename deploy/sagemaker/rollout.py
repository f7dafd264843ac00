"""The rollout of an update: traffic moves to new instances in steps, and back if an alarm is raised.

Source: docs/spec/deploy.md section 4 "Guardrails"; the API's model of DeploymentConfig.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deploy.sagemaker.errors import BadSettings
from deploy.sagemaker.kind import Kind

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
