"""A plan as plain values: calls of AWS's APIs and waits between them, to be printed or executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

INSERVICE_LIMIT_S = 2400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call. `service` is boto3's name of the API; `operation` and `parameters` are named as in the API.

    `may_exist`: the resource may exist already. `best_effort`: the plan continues if the call fails.
    """

    service: str
    operation: str
    parameters: Mapping[str, Any]
    may_exist: bool = False
    best_effort: bool = False

    @property
    def name(self) -> str:
        return f"{self.service}.{self.operation}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Repeat `call` until the member `status` of the answer is `until`; with None until the subject no longer exists.

    The values in `going_on` mean that this may still happen; any other value is a failure. `expected` members must then
    have the given values. `refused` members must not; their second value is the message if they do.
    """

    call: Call
    status: str
    until: str | None
    going_on: tuple[str, ...]
    limit_s: float = INSERVICE_LIMIT_S
    expected: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def goal(self) -> str:
        what = "it no longer exists" if self.until is None else f"{self.status} is {self.until}"
        return f"until {what}, at most {self.limit_s:g} s"


Step: TypeAlias = Call | Wait
Plan: TypeAlias = tuple[Step, ...]


def calls_of(plan: Plan) -> list[Call]:
    return [step.call if isinstance(step, Wait) else step for step in plan]
