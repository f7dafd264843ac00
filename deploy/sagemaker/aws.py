"""The calls of AWS's APIs: made with boto3's clients, or checked and printed without being made."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, TextIO

import boto3
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from trident.tools.emulators.sagemaker.api_model import NO_VALUE, problems


class DeployError(Exception):
    """`str()` says what happened; `hint` says what to do about it, and may be empty."""

    status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadSettings(DeployError):
    """Invalid settings; no call was made."""

    status = 2


class Unknown(str):
    """Stands in a dry run for a value that an answer will have."""

    __slots__ = ()


VARIANT = "AllTraffic"
SAGEMAKER = "sagemaker"
POLL_S = 10.0
# Longer than the platform waits for an answer of the container, which is 60 seconds.
_READ_TIMEOUT_S = 90
_RIGHTS = "docs/sagemaker.md lists the rights that each action needs"
_HINTS = {
    "AccessDeniedException": _RIGHTS,
    "AccessDenied": _RIGHTS,
    "ResourceLimitExceeded": "a quota of the account: request an increase under Service Quotas, or use other instances",
}
_ABSENT = ("could not find", "does not exist", "not found", "no scalable target found")
_ONLY_LOOKS = ("Describe", "List", "Get", "Invoke")
# The parameters of a call that name its subject in the progress.
_NAMES = ("Name", "Names", "ResourceId", "ResourceIds", "NameContains")


class Aws:
    """Makes calls, and prints their progress. Without clients it checks and prints them.

    `client_of` returns the client of an API by boto3's name for it. `pause` and `clock` use seconds, for waits.
    """

    def __init__(
        self,
        client_of: Callable[[str], Any] | None,
        out: TextIO,
        *,
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client_of = client_of
        self.pause = pause
        self.clock = clock
        self.failures = 0
        """The number of failed best-effort calls."""
        self.problems: list[str] = []
        self._out = out

    @property
    def dry(self) -> bool:
        return self.client_of is None

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def call(
        self,
        service: str,
        operation: str,
        parameters: Mapping[str, Any],
        *,
        stand_in: Any = None,
        may_exist: bool = False,
        best_effort: bool = False,
    ) -> Any:
        """The answer, with all pages of a list; in a dry run `stand_in`.

        `may_exist`: a resource with the same content may exist. `best_effort`: a failure is counted, not raised, and
        has no answer. Raises DeployError.
        """
        if self.client_of is None:
            self._check(service, operation, parameters, "")
            return stand_in or {}
        subject = subject_of(parameters)
        try:
            answer = self._ask(service, operation, parameters)
        except (ClientError, BotoCoreError) as error:
            if may_exist and _says(error, "already exist"):
                self.say(f"{operation} {subject}: exists already, with the same content")
            elif best_effort and is_absent(error):
                self.say(f"{operation} {subject}: does not exist")
            elif best_effort:
                self.failures += 1
                self.say(f"failed: {failure(service, operation, parameters, error)}")
            else:
                raise failure(service, operation, parameters, error) from error
            return {}
        if not operation.startswith(_ONLY_LOOKS):
            self.say(f"{operation} {subject}: done")
        return answer

    def wait(
        self,
        operation: str,
        parameters: Mapping[str, Any],
        status: str,
        until: str | None,
        going_on: tuple[str, ...],
        limit_s: float,
    ) -> Any:
        """Repeat a call until the member `status` of the answer is `until`; with None until the subject is gone.

        Returns the last answer. Raises DeployError for a status that is not `going_on`, and after `limit_s`.
        """
        if self.client_of is None:
            what = "it no longer exists" if until is None else f"{status} is {until}"
            self._check(SAGEMAKER, operation, parameters, f"  # until {what}, at most {limit_s:g} s")
            return {}
        subject, deadline, shown = subject_of(parameters), self.clock() + limit_s, None
        while True:
            try:
                answer = self._ask(SAGEMAKER, operation, parameters)
            except (ClientError, BotoCoreError) as error:
                if until is None and is_absent(error):
                    self.say(f"{subject}: gone")
                    return {}
                raise failure(SAGEMAKER, operation, parameters, error) from error
            if answer[status] != shown:
                shown = answer[status]
                self.say(f"{subject}: {shown}")
            if shown == until:
                return answer
            if shown not in going_on:
                raise DeployError(f"{subject}: {status} is {shown}{because(answer)}")
            if self.clock() >= deadline:
                raise DeployError(
                    f"{subject}: {status} is {shown} after {limit_s:g} s{because(answer)}",
                    hint="AWS continues; use --wait-secs to wait longer",
                )
            self.pause(POLL_S)

    def raise_problems(self) -> None:
        """Raise BadSettings with every problem of the calls of a dry run."""
        if self.problems:
            is_unknown = any(NO_VALUE in problem for problem in self.problems)
            hint = "a newer SDK may know it: pip install --upgrade boto3" if is_unknown else ""
            raise BadSettings("\n".join(dict.fromkeys(self.problems)), hint=hint)

    def _ask(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Any:
        assert self.client_of is not None
        client, method = self.client_of(service), xform_name(operation)
        if client.can_paginate(method):
            return client.get_paginator(method).paginate(**parameters).build_full_result()
        return getattr(client, method)(**parameters)

    def _check(self, service: str, operation: str, parameters: Mapping[str, Any], goal: str) -> None:
        name = f"{service}.{operation}"
        self.problems += [f"{name}: {problem}" for problem in problems(service, operation, parameters)]
        self.say(f"{name} {json.dumps(parameters, default=_shown, ensure_ascii=False)}{goal}")


def _shown(body: bytes) -> str:
    return body.decode("ascii") if len(body) < 2000 and body.isascii() else f"<{len(body)} bytes>"


def clients(stack: ExitStack, region: str, endpoint_url: str) -> Callable[[str], Any]:
    """Makes each client once; the stack closes them. An empty region or address selects boto3's default."""
    made: dict[str, Any] = {}

    def client_of(service: str) -> Any:
        if service not in made:
            made[service] = _client(service, region, endpoint_url)
            stack.callback(made[service].close)
        return made[service]

    return client_of


def _client(service: str, region: str, endpoint_url: str) -> Any:
    config = Config(read_timeout=_READ_TIMEOUT_S, retries={"mode": "standard", "max_attempts": 5})
    try:
        session = boto3.session.Session(region_name=region or None)
        if endpoint_url:  # an emulator asks neither who calls nor from where, but tells services apart by the signature
            session = boto3.session.Session(region_name=session.region_name or "us-east-1")
            if session.get_credentials() is None:
                session = boto3.session.Session("any", "any", region_name=session.region_name)
        # Only an address that is given here would take precedence over the variable, as that of an emulator of S3.
        own = f"AWS_ENDPOINT_URL_{service.upper().replace('-', '_')}" in os.environ
        return session.client(service, endpoint_url=None if own else endpoint_url or None, config=config)
    except NoRegionError:
        raise BadSettings("no region is given", hint="use --region or AWS_DEFAULT_REGION") from None
    except (BotoCoreError, ValueError) as error:
        raise BadSettings(str(error)) from None


def failure(service: str, operation: str, parameters: Mapping[str, Any], error: Exception) -> DeployError:
    """The error that botocore raised, with a hint."""
    name = f"{service}.{operation}"
    if isinstance(error, NoCredentialsError):
        return DeployError(f"{name}: there are no credentials", hint="use aws configure or AWS_PROFILE")
    if not isinstance(error, ClientError):
        return DeployError(f"{name}: {error}")
    code, message = error_of(error)
    hint = _HINTS.get(code, "")
    if operation == "CreateEndpoint" and _says(error, "already exist"):
        hint = "use the action update to deploy a new model to an existing endpoint"
    elif parameters.get("EndpointName") and is_absent(error):
        hint = "use the action create, or check region and account"
    return DeployError(f"{name}: {code}: {message}", hint=hint)


def error_of(error: ClientError) -> tuple[str, str]:
    """The code and the message of an error."""
    found: Any = error.response.get("Error", {})
    return str(found.get("Code", "")), str(found.get("Message", ""))


def is_absent(error: Exception) -> bool:
    """True if the resource that a call names does not exist; the APIs use several codes for this."""
    return isinstance(error, ClientError) and ("NotFound" in error_of(error)[0] or _says(error, *_ABSENT))


def _says(error: Exception, *texts: str) -> bool:
    return isinstance(error, ClientError) and any(text in error_of(error)[1].lower() for text in texts)


def subject_of(parameters: Mapping[str, Any]) -> str:
    """The names that a call is about: its first name parameter, or all names of that list."""
    first = next((value for name, value in parameters.items() if name.endswith(_NAMES)), "")
    return ", ".join(first) if isinstance(first, list) else str(first)


def because(answer: Any) -> str:
    reason = answer.get("FailureReason") or answer.get("StatusMessage")
    return f": {reason}" if reason else ""


# Models and endpoint configurations are immutable, so their names end with a hash of their content: equal contents
# have equal names, and a changed one gets a new name beside the old one.

_HASH_DIGITS = 10
_LONGEST_ENDPOINT = 63 - _HASH_DIGITS - 1
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")


def check_name(name: str) -> None:
    """Raises BadSettings for an invalid name of an endpoint, or one too long for the names derived from it."""
    if not _NAME.fullmatch(name):
        raise BadSettings(f"'{name}' is not a valid name", hint="use letters, digits and inner hyphens")
    if len(name) > _LONGEST_ENDPOINT:
        raise BadSettings(f"the name '{name}' has {len(name)} characters", hint=f"at most {_LONGEST_ENDPOINT} fit")


def content_name(endpoint: str, content: Mapping[str, Any]) -> str:
    """The name of `content`, which must be serializable as JSON: `endpoint` and a hash."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{endpoint}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"


def is_ours(name: str, endpoint: str) -> bool:
    """True if `content_name` may have made this name for the endpoint."""
    made = re.fullmatch(rf"{re.escape(endpoint)}-[0-9a-f]{{{_HASH_DIGITS}}}", name)
    return isinstance(name, Unknown) or made is not None


def tagged(texts: list[str]) -> dict[str, Any]:
    """The parameter for tags; left out without tags, because setting tags needs an additional permission."""
    tags = [{"Key": key, "Value": value} for key, value in pairs("--tag", texts).items()]
    return given_values(Tags=tags)


def pairs(flag: str, texts: list[str]) -> dict[str, str]:
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise BadSettings(f"{flag} is '{text}'", hint="it takes NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def given_values(**members: Any) -> dict[str, Any]:
    """The members that have a value; without the others the platform's defaults apply."""
    return {name: value for name, value in members.items() if value}
