"""A plan as plain values: calls of AWS's APIs and waits between them, to be printed or executed.

The errors of a deployment:

DeployError
├── BadSettings     invalid settings; no call was made
├── CallFailed      AWS refused a call or could not be reached
├── NotReached      the endpoint or the job did not reach the expected state
└── SmokeFailed     the endpoint gave a wrong answer
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import jmespath

from trident.app.emulators.sagemaker.api_model import NO_VALUE, problems


class DeployError(Exception):
    """`str()` says what happened; `hint` says what to do about it, and may be empty."""

    status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadSettings(DeployError):
    status = 2


class CallFailed(DeployError):
    pass


class NotReached(DeployError):
    pass


class SmokeFailed(DeployError):
    pass


class Kind(StrEnum):
    """Source: docs/spec/deploy.md section 4, docs/spec/sagemaker.md sections A5 and A6."""

    REAL_TIME = "real-time"
    MULTI_MODEL = "multi-model"
    ASYNC = "async"
    SERVERLESS = "serverless"
    BATCH = "batch"


class Answer(str):
    """A text that stands for the value; its characters describe it in a printed plan.

    `path` is a JMESPath into the last answer to `operation`. With `each` the path leads to a list, and the call is made
    once for each of its values. Values that do not match the whole regular expression `matching` are left out.
    """

    __slots__ = ("each", "matching", "operation", "path")
    operation: str
    path: str
    each: bool
    matching: str

    def __new__(cls, operation: str, path: str, *, each: bool = False, matching: str = "") -> Answer:
        fit = f" like {matching}" if matching else ""
        made = super().__new__(cls, f"<{'each ' if each else ''}{path} of {operation}{fit}>")
        made.operation, made.path, made.each, made.matching = operation, path, each, matching
        return made

    def values(self, answers: Mapping[str, Any]) -> list[Any]:
        """The values in `answers`, which are keyed by operation; at most one without `each`."""
        found = member(self.path, answers.get(self.operation))
        listed = found if self.each and isinstance(found, list) else [found]
        return [value for value in listed if value is not None and self._fits(value)]

    def _fits(self, value: Any) -> bool:
        return not self.matching or re.fullmatch(self.matching, str(value)) is not None


def member(path: str, answer: Any) -> Any:
    """The value at the JMESPath `path`; None if there is none."""
    return jmespath.search(path, answer)


def answers_in(value: Any) -> Iterator[Answer]:
    """Every Answer in the parameters of a call, at any depth."""
    if isinstance(value, Answer):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from answers_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from answers_in(each)


def replaced(value: Any, known: Mapping[Answer, Any]) -> Any:
    """`value` with its Answers replaced by their values in `known`."""
    if isinstance(value, Answer):
        return known[value]
    if isinstance(value, Mapping):
        return {name: replaced(each, known) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [replaced(each, known) for each in value]
    return value


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


def check_plan(plan: Plan) -> None:
    """Raise BadSettings with every problem of every call."""
    found = [f"{call.name}: {problem}" for call in calls_of(plan) for problem in _problems(call)]
    if found:
        is_unknown = any(NO_VALUE in problem for problem in found)
        hint = "a newer SDK may know it: pip install --upgrade boto3" if is_unknown else ""
        raise BadSettings("\n".join(dict.fromkeys(found)), hint=hint)


def _problems(call: Call) -> list[str]:
    return problems(call.service, call.operation, call.parameters)


# Models and endpoint configurations are immutable, so their names end with a hash of their content: equal contents
# have equal names, and a changed one gets a new name beside the old one.


VARIANT = "AllTraffic"
_HASH_DIGITS = 10
_LONGEST = 63
_LONGEST_ENDPOINT = _LONGEST - _HASH_DIGITS - 1
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")


def checked_name(name: str) -> str:
    """Raises BadSettings for an invalid name of an endpoint, or one too long for the names derived from it."""
    if not _NAME.fullmatch(name):
        raise BadSettings(f"'{name}' is not a valid name", hint="use letters, digits and inner hyphens")
    if len(name) > _LONGEST_ENDPOINT:
        raise BadSettings(
            f"the name '{name}' has {len(name)} characters",
            hint=f"at most {_LONGEST_ENDPOINT} are allowed: {_HASH_DIGITS + 1} of {_LONGEST} are reserved for a hash",
        )
    return name


def content_name(endpoint: str, content: Mapping[str, Any]) -> str:
    """The name of `content`, which must be serializable as JSON: `endpoint` and a hash."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{endpoint}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"


def content_names(endpoint: str) -> str:
    """The regular expression for all names that `content_name` may return."""
    return rf"{re.escape(endpoint)}-[0-9a-f]{{{_HASH_DIGITS}}}"


def tagged(tags: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """The parameter for tags; left out without tags, because setting tags needs an additional permission."""
    return {"Tags": tags} if tags else {}
