"""Executes a plan: makes its calls in order and prints their progress."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from deploy.sagemaker.clients import call_failed, is_absent, is_existing
from deploy.sagemaker.errors import CallFailed, NotReached
from deploy.sagemaker.plan import Answer, Call, Plan, Wait, answers_in, member, replaced

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

    def answer(self, operation: str) -> Any:
        """The last answer to `operation`; None without one."""
        return self._answers.get(operation)

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
