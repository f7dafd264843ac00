"""Asynchronous invocations: the queue of an endpoint, whose requests and answers are objects in S3.

Source: docs/spec/sagemaker.md section A6.
"""

from __future__ import annotations

import base64
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import boto3
import orjson
from botocore.exceptions import BotoCoreError, ClientError

from trident.app.emulators.container import BreachReport, ClientClosed, size
from trident.app.emulators.sagemaker.endpoint import PlatformLimits
from trident.app.emulators.sagemaker.fleet import Fleet
from trident.app.emulators.sagemaker.invocation import INFERENCE_ID, ApiError, Invocation, passed_back, validation_error
from trident.app.emulators.sagemaker.transform import S3_SCHEME, Objects, joined
from trident.core.errors import ConfigInvalid

INLINE_BYTES = 128_000
_TTL_S, _TIMEOUT_S = 21600, 900
_LEAST_TTL_S, _MOST_TIMEOUT_S = 60, 3600
_AT_ONCE = 4
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Queued:
    """What the caller of an asynchronous invocation is told."""

    inference_id: str
    output: str
    failure: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call in the queue: `location` is "" for an input in the call."""

    invocation: Invocation
    location: str
    queued: Queued
    expires_s: float
    endpoint: str
    received: str


_SUCCESS, _ERROR = "SuccessTopic", "ErrorTopic"
_INCLUDED = {_SUCCESS: "SUCCESS_NOTIFICATION_TOPIC", _ERROR: "ERROR_NOTIFICATION_TOPIC"}
_BINARY = "BASE64"


class _Topics:
    """Publishes the end of each call. `given` is the API's NotificationConfig; topics it lacks get no messages."""

    def __init__(self, given: Mapping[str, Any], report: BreachReport) -> None:
        self._given, self._report = given, report

    def publish(self, kind: str, call: _Waiting, body: bytes, content_type: str, reason: str) -> None:
        topic = self._given.get(kind, "")
        if not topic:
            return
        message: dict[str, Any] = {
            "awsRegion": topic.split(":")[3],
            "eventTime": _now(),
            "receivedTime": call.received,
            "invocationStatus": "Failed" if reason else "Completed",
            **({"failureReason": reason} if reason else {}),
            "requestParameters": {
                "contentType": call.invocation.headers.get("Content-Type", ""),
                "endpointName": call.endpoint,
                **({"inputLocation": call.location} if call.location else {}),
            },
            "responseParameters": {
                "contentType": content_type,
                "outputLocation": call.queued.failure if reason else call.queued.output,
            },
            "inferenceId": call.queued.inference_id,
            "eventVersion": "1.0",
            "eventSource": "aws:sagemaker",
            "eventName": "InferenceResult",
        }
        is_included = _INCLUDED[kind] in self._given.get("IncludeInferenceResponseIn", ())
        if is_included and len(body) <= INLINE_BYTES:
            content = base64.b64encode(body).decode()
            message["responseBody"] = {"content": content, "encoding": _BINARY, "contentType": content_type}
        try:
            with closing(boto3.session.Session(region_name=message["awsRegion"]).client("sns")) as sns:
                sns.publish(TopicArn=topic, Message=orjson.dumps(message).decode())
        except (ClientError, BotoCoreError) as error:
            self._report.add(f"the message to {topic} was lost: {error}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class InvocationQueue:
    """Takes asynchronous invocations and has `fleet` answer them. `given` is the API's AsyncInferenceConfig.

    Requests wait while no instance is in service. Any thread; a context manager that ends with its queue unread.
    """

    def __init__(self, given: Mapping[str, Any], fleet: Fleet, limits: PlatformLimits, report: BreachReport) -> None:
        """Raises ConfigInvalid for a configuration without a place for answers."""
        target = given.get("OutputConfig", {})
        self._output, self._failures = target.get("S3OutputPath", ""), target.get("S3FailurePath", "")
        if not self._output:
            raise ConfigInvalid("AsyncInferenceConfig has no OutputConfig.S3OutputPath")
        self._topics = _Topics(target.get("NotificationConfig", {}), report)
        at_once = given.get("ClientConfig", {}).get("MaxConcurrentInvocationsPerInstance", _AT_ONCE)
        self._fleet, self._limits, self._report = fleet, limits, report
        self._objects = Objects()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(at_once * max(1, fleet.desired), "async invocations")

    def close(self) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)
        self._objects.close()

    def add(self, invocation: Invocation, given: Mapping[str, str], endpoint: str) -> Queued:
        """Queue a call of `endpoint`; `given` are its headers, without their prefix.

        Raises ApiError for a call that is invalid.
        """
        location = given.get("InputLocation", "")
        if bool(location) == bool(invocation.body):
            raise validation_error("Exactly one of InputLocation and Body must be given")
        if location and not location.startswith(S3_SCHEME):
            raise validation_error(f"The InputLocation {location[:200]} is not in S3")
        if len(invocation.body) > INLINE_BYTES:
            raise validation_error(f"The Body has more than {size(INLINE_BYTES)}; use InputLocation")
        ttl_s = _seconds(given, "RequestTTLSeconds", _LEAST_TTL_S, _TTL_S, _TTL_S)
        timeout_s = _seconds(given, "InvocationTimeoutSeconds", 1, _MOST_TIMEOUT_S, _TIMEOUT_S)
        inference_id = invocation.headers.get(INFERENCE_ID) or str(uuid.uuid4())
        extension = given.get("S3OutputPathExtension")
        folder = joined(self._output, extension) if extension else self._output
        output = joined(folder, given.get("Filename") or f"{uuid.uuid4()}.out")
        failure = joined(self._failures, f"{uuid.uuid4()}-error.out") if self._failures else ""
        queued = Queued(inference_id, output, failure)
        headers = {**invocation.headers, INFERENCE_ID: inference_id}
        waiting = Invocation(headers, invocation.body, within_s=timeout_s)
        self._pool.submit(self._run, _Waiting(waiting, location, queued, time.monotonic() + ttl_s, endpoint, _now()))
        return queued

    def _run(self, call: _Waiting) -> None:
        invocation, location, queued = call.invocation, call.location, call.queued
        try:
            while not self._fleet.current and not self._stopped.is_set() and time.monotonic() < call.expires_s:
                self._stopped.wait(_POLL_S)
            if time.monotonic() >= call.expires_s:
                raise validation_error("The request was in the queue for longer than its RequestTTLSeconds")
            body = self._objects.read(location) if location else invocation.body
            if len(body) > self._limits.body_bytes:
                raise validation_error(f"The object {location} has more than {size(self._limits.body_bytes)}")
            answer = self._fleet.invoke(Invocation(invocation.headers, body, within_s=invocation.within_s))
            content_type = passed_back(answer.headers, self._report).get("Content-Type", "application/octet-stream")
            self._objects.write(queued.output, answer.body, content_type)
            self._topics.publish(_SUCCESS, call, answer.body, content_type, "")
        except ClientClosed:
            pass  # the emulator ends, and with it the queue
        except (ApiError, ConfigInvalid) as error:
            self._fail(call, error)

    def _fail(self, call: _Waiting, error: ApiError | ConfigInvalid) -> None:
        try:
            if call.queued.failure:
                self._objects.write(call.queued.failure, error.message.encode(), "text/plain")
        except ConfigInvalid as refused:
            self._report.add(f"an asynchronous answer was lost: {refused.message}")
        self._topics.publish(_ERROR, call, error.message.encode(), "text/plain", error.message)


def _seconds(given: Mapping[str, str], name: str, least: int, most: int, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and least <= int(text[:9]) <= most):
        raise validation_error(f"{name} must be {least} to {most}, not {text[:20]}")
    return int(text)
