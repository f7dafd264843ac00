"""What is to be done, as values: calls of AWS's APIs, and waits between them. It is printed, or executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

INSERVICE_LIMIT_S = 2400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call: `service` is boto3's name of the API, `operation` the API's own, and so are the parameters.

    `may_exist`: somebody may have made the same thing already. `best_effort`: the plan goes on if it fails.
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
    """Make `call` again and again until the member `status` of the answer is `until`; None: until there is nothing.

    Every value of `going_on` means that it may still come to that; any other one is a failure. `expected` are members
    that must then have these values, `refused` those that must not, with what to tell if they do.
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
        what = "it is gone" if self.until is None else f"{self.status} is {self.until}"
        return f"until {what}, at most {self.limit_s:g} s"


Step: TypeAlias = Call | Wait
Plan: TypeAlias = tuple[Step, ...]


def calls_of(plan: Plan) -> list[Call]:
    return [step.call if isinstance(step, Wait) else step for step in plan]
