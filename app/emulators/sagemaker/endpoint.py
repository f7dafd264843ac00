"""Endpoints: they forward invocations to the container's routes and turn its answers into the API's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from app.emulators.common.breach_report import BreachReport
from app.emulators.common.container_client import (
    ContainerAnswer,
    ContainerClient,
    ContainerFault,
    ContainerStream,
)
from app.emulators.sagemaker.api_error import ApiError, model_error, validation_error
from app.emulators.sagemaker.endpoint_models import NO_MEMORY, EndpointModels
from app.emulators.sagemaker.invocation import Invocation
from app.emulators.sagemaker.limits import PlatformLimits

_OK = 200


class Endpoint(Protocol):
    """Forwards invocations. Any thread."""

    def invoke(self, invocation: Invocation) -> ContainerAnswer:
        """The container's answer with status 200. Raises ApiError for another answer and for none."""

    @contextmanager
    def stream(self, invocation: Invocation) -> Iterator[ContainerStream]:
        """The same answer as a stream. Reading it raises ContainerFault."""


class SingleModelEndpoint:
    """Forwards every invocation to /invocations."""

    def __init__(self, client: ContainerClient, limits: PlatformLimits, report: BreachReport) -> None:
        self._client = client
        self._limits = limits
        self._report = report

    def invoke(self, invocation: Invocation) -> ContainerAnswer:
        _refuse_target(invocation)
        answer = _ask(self._client, "/invocations", invocation, self._limits, self._report)
        return _successful(answer)

    @contextmanager
    def stream(self, invocation: Invocation) -> Iterator[ContainerStream]:
        _refuse_target(invocation)
        opened = self._client.open(
            "POST",
            "/invocations",
            headers=invocation.headers,
            body=invocation.body,
            within_s=self._limits.stream_s,
        )
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(opened)
            except ContainerFault as fault:
                raise _no_answer("POST /invocations", fault, self._report) from fault
            if stream.status != _OK:
                raise self._refusal(stream)
            yield stream

    def _refusal(self, stream: ContainerStream) -> ApiError:
        try:
            answer = stream.whole(self._limits.body_bytes)
        except ContainerFault as fault:
            return _no_answer("POST /invocations", fault, self._report)
        return model_error(answer.status, answer.text)


class MultiModelEndpoint:
    """Forwards every invocation to the model that it names, and loads that model first if necessary."""

    def __init__(
        self, client: ContainerClient, models: EndpointModels, limits: PlatformLimits, report: BreachReport
    ) -> None:
        self._client = client
        self._models = models
        self._limits = limits
        self._report = report

    def invoke(self, invocation: Invocation) -> ContainerAnswer:
        key = invocation.target_model
        if not key:
            raise validation_error(
                "Invocation of a multi-model endpoint without the header X-Amzn-SageMaker-Target-Model"
            )
        with self._models.use(key) as name:
            while True:
                path = f"/models/{name}/invoke"
                answer = _ask(self._client, path, invocation, self._limits, self._report)
                if answer.status != NO_MEMORY or not self._models.evict_for(key):
                    break
        if answer.status == 404:
            self._report.add(f"POST {path}: the container answered 404 for a model that is loaded")
        return _successful(answer)

    @contextmanager
    def stream(self, invocation: Invocation) -> Iterator[ContainerStream]:
        raise validation_error("A multi-model endpoint has no response stream")
        yield  # pragma: no cover


def _ask(
    client: ContainerClient, path: str, invocation: Invocation, limits: PlatformLimits, report: BreachReport
) -> ContainerAnswer:
    try:
        return client.ask("POST", path, headers=invocation.headers, body=invocation.body, within_s=limits.invoke_s)
    except ContainerFault as fault:
        raise _no_answer(f"POST {path}", fault, report) from fault


def _no_answer(request: str, fault: ContainerFault, report: BreachReport) -> ApiError:
    report.add(f"{request}: the container {fault}")
    return model_error(0, f"the container {fault}")


def _successful(answer: ContainerAnswer) -> ContainerAnswer:
    if answer.status != _OK:
        raise model_error(answer.status, answer.text)
    return answer


def _refuse_target(invocation: Invocation) -> None:
    if invocation.target_model:
        raise validation_error("Invocation of a single-model endpoint with the header X-Amzn-SageMaker-Target-Model")
