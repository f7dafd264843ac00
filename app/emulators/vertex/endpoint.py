"""The endpoint: it forwards calls to the container and turns the answers into the API's.

Source: docs/spec/vertex.md sections A3 and A4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from trident.app.emulators.container import (
    ClientClosed,
    ContainerAnswer,
    ContainerClient,
    ContainerFault,
    ContainerStream,
)
from trident.app.emulators.report import BreachReport
from trident.app.emulators.vertex.direct import DirectCalls
from trident.app.emulators.vertex.limits import Deployment, GoogleError, PlatformLimits, refused, response_too_large
from trident.app.emulators.vertex.predictions import (
    PredictionFault,
    Predictions,
    PredictRequest,
    RawRequest,
    read_predictions,
)

_OK = 200
_JSON = {"Content-Type": "application/json"}


class Endpoint:
    """Forwards calls by `client` to the container of `deployment` while `has_traffic` returns true. Any thread."""

    def __init__(
        self,
        client: ContainerClient,
        deployment: Deployment,
        limits: PlatformLimits,
        report: BreachReport,
        has_traffic: Callable[[], bool],
    ) -> None:
        self._client = client
        self.deployment = deployment
        self.limits = limits
        self._report = report
        self._has_traffic = has_traffic
        self.direct = DirectCalls(deployment, limits, report, has_traffic)

    def predict(self, request: PredictRequest) -> dict[str, Any]:
        """The predictions, with the platform's description of the model. Raises GoogleError."""
        found = self.predictions(request)
        metadata = {} if found.metadata is None else {"metadata": found.metadata}
        return {
            "predictions": found.values,
            "deployedModelId": self.deployment.deployed_model_id,
            "model": self.deployment.model,
            "modelDisplayName": self.deployment.display_name,
            "modelVersionId": self.deployment.model_version_id,
            **metadata,
        }

    def explain(self, request: PredictRequest) -> dict[str, Any]:
        """The predictions with an empty explanation for each instance. Raises GoogleError.

        The platform computes explanations itself, from the container's predictions for slightly changed instances, by
        the model's explanation spec.
        """
        found = self.predictions(request)
        return {
            "explanations": [{"attributions": []} for _ in range(request.count)],
            "deployedModelId": self.deployment.deployed_model_id,
            "predictions": found.values,
        }

    def predictions(self, request: PredictRequest) -> Predictions:
        """The container's predictions. Raises GoogleError."""
        path = self.deployment.predict_path
        answer = self._ask("POST", path, RawRequest(_JSON, request.body))
        if answer.status != _OK:
            raise refused(answer.status, answer.text)
        try:
            found = read_predictions(answer.body)
        except PredictionFault as fault:
            self._report.add(f"POST {path}: the container {fault}")
            raise GoogleError(500, f"the container {fault}") from None
        if fault_text := found.fault(request.count):
            self._report.add(f"POST {path}: the container {fault_text}")
        return found

    def raw_predict(self, request: RawRequest) -> ContainerAnswer:
        """The container's answer with any status. Raises GoogleError if there is none."""
        return self._ask("POST", self.deployment.predict_path, request)

    def invoke(self, method: str, path: str, request: RawRequest) -> ContainerAnswer:
        """The container's answer for any path. Raises GoogleError if there is none."""
        return self._ask(method, path, request)

    @contextmanager
    def stream(self, request: RawRequest) -> Iterator[ContainerStream]:
        """The answer of `raw_predict` as a stream. Reading it raises ContainerFault."""
        self._check_traffic()
        path = self.deployment.predict_path
        opened = self._client.open(
            "POST", path, headers=request.headers, body=request.body, within_s=self.limits.inference_s
        )
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(opened)
            except ClientClosed:
                raise _undeployed() from None
            except ContainerFault as fault:
                raise self._no_answer(f"POST {path}", fault) from fault
            yield stream

    def _ask(self, method: str, path: str, request: RawRequest) -> ContainerAnswer:
        self._check_traffic()
        try:
            return self._client.ask(
                method, path, headers=request.headers, body=_sent(method, request), within_s=self.limits.inference_s
            )
        except ClientClosed:
            raise _undeployed() from None
        except ContainerFault as fault:
            raise self._no_answer(f"{method} {path.partition('?')[0]}", fault) from fault

    def _check_traffic(self) -> None:
        if not self._has_traffic():
            raise GoogleError(503, "The model is unhealthy: the health probes of its container fail")

    def _no_answer(self, request: str, fault: ContainerFault) -> GoogleError:
        self._report.add(f"{request}: the container {fault}")
        if fault.is_late:
            return GoogleError(504, f"the container {fault}")
        if fault.is_large:
            return response_too_large(self.deployment, self.limits.body_bytes)
        return GoogleError(503, f"the container {fault}")


def _undeployed() -> GoogleError:
    return GoogleError(503, "The model is being undeployed")


def _sent(method: str, request: RawRequest) -> bytes | None:
    """The body; None for a request that is sent without a Content-Length."""
    return None if method != "POST" and not request.body else request.body
