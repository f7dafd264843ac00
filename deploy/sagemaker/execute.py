"""Executes a plan: makes its calls in order with boto3's clients, and prints their progress."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TextIO

import boto3
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from deploy.sagemaker.plan import (
    Answer,
    BadSettings,
    Call,
    CallFailed,
    NotReached,
    Plan,
    Wait,
    answers_in,
    member,
    replaced,
)

# Longer than the platform waits for an answer of the container, which is 60 seconds.
_READ_TIMEOUT_S = 90
_EMULATED_REGION = "us-east-1"
_EMULATED_KEYS = ("any", "any")
_HINTS = {
    "AccessDeniedException": "docs/sagemaker.md lists the rights that each action needs",
    "AccessDenied": "docs/sagemaker.md lists the rights that each action needs",
    "ExpiredTokenException": "sign in again",
    "ExpiredToken": "sign in again",
    "UnrecognizedClientException": "the credentials do not belong to this account or region",
    "ResourceLimitExceeded": "a quota of the account: request an increase under Service Quotas, or use other instances",
}
_ABSENT = ("could not find", "does not exist", "not found", "no scalable target found")
_EXISTING = ("already exist",)


class Clients:
    """A context manager and a function that returns the client of an API by boto3's name for the API.

    Each client is made once and closed on exit. An empty region or address selects boto3's default. At an address the
    client makes do without a region and credentials if there are none.
    """

    def __init__(self, region: str, endpoint_url: str) -> None:
        self._region = region
        self._endpoint_url = endpoint_url
        self._made: dict[str, Any] = {}

    def __enter__(self) -> Clients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._made.values():
            client.close()

    def __call__(self, service: str) -> Any:
        """Raises BadSettings if boto3 cannot make the client, for example without a region."""
        if service not in self._made:
            self._made[service] = self._make(service)
        return self._made[service]

    def _make(self, service: str) -> Any:
        config = Config(read_timeout=_READ_TIMEOUT_S, retries={"mode": "standard", "max_attempts": 5})
        try:
            session = boto3.session.Session(region_name=self._region or None)
            if self._endpoint_url:  # an emulator asks neither who calls nor from where
                session = boto3.session.Session(region_name=session.region_name or _EMULATED_REGION)
                if session.get_credentials() is None:  # it may tell services apart by the signature
                    session = boto3.session.Session(*_EMULATED_KEYS, region_name=session.region_name)
            # Only an address that is given here would take precedence over the variable, as that of an emulator of S3.
            own = f"AWS_ENDPOINT_URL_{service.upper().replace('-', '_')}" in os.environ
            return session.client(service, endpoint_url=None if own else self._endpoint_url or None, config=config)
        except NoRegionError:
            raise BadSettings("no region is given", hint="use --region or AWS_DEFAULT_REGION") from None
        except (BotoCoreError, ValueError) as error:
            raise BadSettings(str(error)) from None


def call_failed(call: Call, error: Exception) -> CallFailed:
    """The error that botocore raised, with a hint."""
    if isinstance(error, NoCredentialsError):
        return CallFailed(f"{call.name}: there are no credentials", hint="use aws configure or AWS_PROFILE")
    if not isinstance(error, ClientError):
        return CallFailed(f"{call.name}: {error}")
    code, message = error_of(error)
    hint = _HINTS.get(code, "")
    if call.operation == "CreateEndpoint" and is_existing(error):
        hint = "use the action update to deploy a new model to an existing endpoint"
    elif call.parameters.get("EndpointName") and is_absent(error):
        hint = "use the action create, or check region and account"
    return CallFailed(f"{call.name}: {code}: {message}", hint=hint)


def error_of(error: ClientError) -> tuple[str, str]:
    """The code and the message of an error."""
    found: Any = error.response.get("Error", {})
    return str(found.get("Code", "")), str(found.get("Message", ""))


def is_absent(error: Exception) -> bool:
    """Whether the resource that a call names does not exist; the APIs use several codes for this."""
    return _says(error, _ABSENT) or (isinstance(error, ClientError) and "NotFound" in error_of(error)[0])


def is_existing(error: Exception) -> bool:
    return _says(error, _EXISTING)


def _says(error: Exception, texts: tuple[str, ...]) -> bool:
    return isinstance(error, ClientError) and any(text in error_of(error)[1].lower() for text in texts)


_LONGEST_TEXT = 2000


class Printer:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def plan(self, plan: Plan) -> None:
        """Print a line per call, `SERVICE.OPERATION {parameters as JSON}`; a wait is followed by its goal."""
        for step in plan:
            if isinstance(step, Wait):
                self.line(f"{written(step.call)}  # {step.goal}")
            else:
                self.line(written(step))

    def line(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def written(call: Call) -> str:
    return f"{call.name} {json.dumps(call.parameters, default=shown_bytes, ensure_ascii=False)}"


def shown_bytes(value: Any) -> str:
    """A body as text if it is short text, otherwise its size."""
    if isinstance(value, bytes):
        text = value.decode("ascii", errors="replace")
        if len(value) <= _LONGEST_TEXT and text.replace("\n", "").isprintable() and "\ufffd" not in text:
            return text
        return f"<{len(value)} bytes>"
    raise TypeError(f"a parameter of the type {type(value).__name__}")


POLL_S = 10.0
_FAILURES = ("FailureReason", "StatusMessage")
_ONLY_LOOKS = ("Describe", "List")
# The parameters of a call that name its subject in the progress.
_NAMES = ("Name", "Names", "ResourceId", "ResourceIds", "NameContains")


class Executor:
    """Executes plans. `client_of` returns the client of an API; `pause` and `clock` use seconds, for waits."""

    def __init__(
        self,
        client_of: Callable[[str], Any],
        printer: Printer,
        *,
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client_of = client_of
        self._printer = printer
        self._pause = pause
        self._clock = clock
        self._answers: dict[str, Any] = {}
        self._failures = 0

    def run(self, plan: Plan) -> int:
        """Execute a plan; the number of failed best-effort calls. Raises CallFailed for other calls, NotReached."""
        for step in plan:
            if isinstance(step, Wait):
                self._wait(step)
            else:
                self._make(step)
        return self._failures

    def _make(self, call: Call) -> None:
        for parameters in self._parameter_sets(call):
            subject = subject_of(parameters)
            try:
                self._answers[call.operation] = self._ask(call, parameters)
                if not call.operation.startswith(_ONLY_LOOKS):
                    self._printer.line(f"{call.operation} {subject}: done")
            except (ClientError, BotoCoreError) as error:
                self._refused(call, subject, error)

    def _refused(self, call: Call, subject: str, error: Exception) -> None:
        self._answers.pop(call.operation, None)
        if call.may_exist and is_existing(error):
            self._printer.line(f"{call.operation} {subject}: exists already, with the same content")
        elif call.best_effort and is_absent(error):
            self._printer.line(f"{call.operation} {subject}: does not exist")
        elif call.best_effort:
            self._failures += 1
            self._printer.line(f"failed: {call_failed(call, error)}")
        else:
            raise call_failed(call, error) from error

    def _parameter_sets(self, call: Call) -> Iterator[dict[str, Any]]:
        """The parameters with the values of earlier answers, one set for each combination of listed values."""
        unknown = list(dict.fromkeys(answers_in(call.parameters)))
        choices = [answer.values(self._answers) for answer in unknown]
        for answer, values in zip(unknown, choices, strict=True):
            if not values and not answer.each:
                raise CallFailed(f"{call.name} needs {answer}, which does not exist")
        for chosen in itertools.product(*choices):
            yield replaced(call.parameters, dict[Answer, Any](zip(unknown, chosen, strict=True)))

    def _ask(self, call: Call, parameters: dict[str, Any]) -> Any:
        client, method = self._client_of(call.service), xform_name(call.operation)
        if client.can_paginate(method):
            return client.get_paginator(method).paginate(**parameters).build_full_result()
        return getattr(client, method)(**parameters)

    def _wait(self, wait: Wait) -> None:
        (parameters,) = self._parameter_sets(wait.call)
        subject = subject_of(parameters)
        deadline, shown = self._clock() + wait.limit_s, None
        while True:
            answer = self._asked(wait, parameters)
            if answer is None:
                self._printer.line(f"{subject}: gone")
                return
            self._answers[wait.call.operation] = answer
            status = str(member(wait.status, answer))
            if status != shown:
                self._printer.line(f"{subject}: {status}")
                shown = status
            if status == wait.until:
                _check_reached(wait, answer, subject)
                return
            if status not in wait.going_on:
                raise NotReached(f"{subject}: {wait.status} is {status}{_because(answer)}")
            if self._clock() >= deadline:
                raise NotReached(
                    f"{subject}: {wait.status} is {status} after {wait.limit_s:g} s{_because(answer)}",
                    hint="AWS continues; use --wait-secs to wait longer",
                )
            self._pause(POLL_S)

    def _asked(self, wait: Wait, parameters: dict[str, Any]) -> Any:
        """The answer; None if the subject no longer exists and the wait is for that."""
        try:
            return self._ask(wait.call, parameters)
        except (ClientError, BotoCoreError) as error:
            if wait.until is None and is_absent(error):
                return None
            raise call_failed(wait.call, error) from error


def _check_reached(wait: Wait, answer: Any, subject: str) -> None:
    for path, value in wait.expected.items():
        found = member(path, answer)
        if found != value:
            raise NotReached(f"{subject}: {path} is {found}, not {value}: it was rolled back{_because(answer)}")
    for path, (value, text) in wait.refused.items():
        if member(path, answer) == value:
            raise NotReached(f"{subject}: {text}", hint="an image under the same tag is not a change: use its digest")


def subject_of(parameters: dict[str, Any]) -> str:
    """The names that a call is about: its first name parameter, or all names of that list."""
    named = [value for name, value in parameters.items() if name.endswith(_NAMES)]
    first = named[0] if named else ""
    return ", ".join(first) if isinstance(first, list) else str(first)


def _because(answer: Any) -> str:
    reasons = [str(answer[name]) for name in _FAILURES if isinstance(answer, dict) and answer.get(name)]
    return f": {reasons[0]}" if reasons else ""
