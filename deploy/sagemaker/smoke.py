"""The smoke test: one request in every form; all responses must agree."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from deploy.sagemaker.execute import Printer, call_failed, error_of
from deploy.sagemaker.plan import BadSettings, Call, Kind, SmokeFailed
from deploy.smoke_forms import HEADER_SIZE, Agreement, BadFile, Form, Request, WrongAnswer
from trident.adapters.sagemaker.platform import SageMaker

_POLL_S = 2.0
# Without BINARY: its reader needs the content type of the response, and a queued call only leaves an object in S3.
_QUEUED_FORMS = (Form.V2, Form.INSTANCES, Form.CSV)
_MISSING = ("NoSuchKey", "404", "AccessDenied")


@dataclass(frozen=True, kw_only=True)
class Smoke:
    """A smoke test. `target_model` is the key of a multi-model endpoint's archive; `limit_s` limits queued calls."""

    endpoint: str
    kind: Kind
    request: Request
    forms: Sequence[Form] = tuple(Form)
    target_model: str = ""
    limit_s: float = 300.0

    @classmethod
    def of(cls, given: Namespace) -> Smoke:
        """The smoke test that a command line asks for. Raises BadSettings."""
        try:
            request = Request.read(given.request)
        except BadFile as error:
            raise BadSettings(str(error)) from None
        return cls(
            endpoint=given.name,
            kind=given.kind,
            request=request,
            forms=given.form or (_QUEUED_FORMS if given.kind is Kind.ASYNC else tuple(Form)),
            target_model=given.target_model,
            limit_s=given.wait_secs,
        )

    def plan(self) -> tuple[Call, ...]:
        """A call for each form. Raises BadSettings."""
        if (self.kind is Kind.MULTI_MODEL) != bool(self.target_model):
            raise BadSettings("--target-model belongs to --kind multi-model", hint="the archive's key below the prefix")
        return tuple(self._call(form) for form in self.forms)

    def _call(self, form: Form) -> Call:
        body = self.request.body(form, SageMaker.binary_type)
        parameters: dict[str, Any] = {
            "EndpointName": self.endpoint,
            "ContentType": body.content_type,
            "Accept": body.accept,
            "Body": body.content,
        }
        if self.target_model:
            parameters["TargetModel"] = self.target_model
        operation = "InvokeEndpointAsync" if self.kind is Kind.ASYNC else "InvokeEndpoint"
        return Call(service="sagemaker-runtime", operation=operation, parameters=parameters)


class SmokeRun:
    """Makes the calls of a smoke test. `pause` and `clock` use seconds, for queued responses."""

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

    def run(self, smoke: Smoke) -> None:
        """Raises SmokeFailed for a malformed response or one that differs from the first form's, CallFailed."""
        agreement = Agreement(smoke.request.item_count)
        for form, call in zip(smoke.forms, smoke.plan(), strict=True):
            started = self._clock()
            answer = self._answer(call, smoke)
            try:
                size = agreement.check(form, *answer)
            except WrongAnswer as wrong:
                raise SmokeFailed(str(wrong), hint=f"the first response was in the form {smoke.forms[0]}") from None
            self._printer.line(f"{form}: {size}, {(self._clock() - started) * 1000:.0f} ms")

    def _answer(self, call: Call, smoke: Smoke) -> tuple[bytes, str]:
        """The body and the content type of the response."""
        client = self._client_of(call.service)
        try:
            answer = getattr(client, xform_name(call.operation))(**call.parameters)
        except (ClientError, BotoCoreError) as error:
            raise call_failed(call, error) from error
        if smoke.kind is Kind.ASYNC:
            content, stored_type = self._queued_answer(answer, smoke.limit_s)
            # The object's content type is undocumented; only the binary type carries additional information.
            return content, stored_type if HEADER_SIZE in stored_type else call.parameters["Accept"]
        return answer["Body"].read(), answer["ContentType"]

    def _queued_answer(self, answer: dict[str, Any], limit_s: float) -> tuple[bytes, str]:
        """Wait for the object that the endpoint writes to S3. Without permission to list, a missing one is refused."""
        deadline = self._clock() + limit_s
        while True:
            found = self._object(answer["OutputLocation"])
            if found is not None:
                return found
            failure = self._object(answer["FailureLocation"]) if answer.get("FailureLocation") else None
            if failure is not None:
                raise SmokeFailed(f"the endpoint wrote a failure: {failure[0].decode(errors='replace')[:2000]}")
            if self._clock() >= deadline:
                raise SmokeFailed(
                    f"no response at {answer['OutputLocation']} after {limit_s:g} s",
                    hint="an endpoint without instances needs some minutes; use --wait-secs to wait longer",
                )
            self._pause(_POLL_S)

    def _object(self, location: str) -> tuple[bytes, str] | None:
        bucket, _, key = location.removeprefix("s3://").partition("/")
        call = Call(service="s3", operation="GetObject", parameters={"Bucket": bucket, "Key": key})
        try:
            found = self._client_of("s3").get_object(**call.parameters)
        except ClientError as error:
            if error_of(error)[0] in _MISSING:
                return None
            raise call_failed(call, error) from error
        except BotoCoreError as error:
            raise call_failed(call, error) from error
        return found["Body"].read(), found["ContentType"]
