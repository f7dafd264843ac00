"""The endpoint: it forwards calls to the container and turns the answers into the API's, whose forms follow below.

Source: docs/spec/vertex.md sections A3 and A4.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from trident.app.emulators.container import (
    BreachReport,
    ClientClosed,
    ContainerAnswer,
    ContainerClient,
    ContainerFault,
    ContainerStream,
)
from trident.app.emulators.vertex.direct import DirectCalls
from trident.app.emulators.vertex.limits import (
    Deployment,
    GoogleError,
    PlatformLimits,
    invalid,
    refused,
    response_too_large,
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
        answer = self.ask("POST", path, RawRequest(_JSON, request.body))
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

    @contextmanager
    def stream(self, request: RawRequest) -> Iterator[ContainerStream]:
        """The answer of the predict route as a stream. Reading it raises ContainerFault."""
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

    def ask(self, method: str, path: str, request: RawRequest) -> ContainerAnswer:
        """The container's answer with any status. Raises GoogleError if there is none."""
        self._check_traffic()
        # Without a body, only POST is sent with a Content-Length.
        body = None if method != "POST" and not request.body else request.body
        try:
            return self._client.ask(method, path, headers=request.headers, body=body, within_s=self.limits.inference_s)
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


_CONTENT_TYPE = "content-type"
# Headers of the connection, of the platform's authentication, and headers that are set again.
_NOT_PASSED = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_PASSED_BACK = _NOT_PASSED | {"date", "server"}
_GOOGLE_PREFIX = "x-goog-"
# In a request of the SDK these describe the envelope.
_OF_THE_ENVELOPE = frozenset({_CONTENT_TYPE, "accept", "accept-encoding", "user-agent"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_HTTP_BODY = "httpBody"


@dataclass(frozen=True, slots=True)
class RawRequest:
    """The request as the container receives it."""

    headers: dict[str, str]
    body: bytes


def read_raw_request(headers: Iterable[tuple[str, str]], body: bytes) -> RawRequest:
    """Read a request without an envelope. Raises GoogleError for a header that cannot be forwarded."""
    return RawRequest(_passed(headers, _NOT_PASSED), body)


def read_sdk_request(headers: Iterable[tuple[str, str]], body: bytes) -> RawRequest:
    """Read a request in the SDK's envelope. Raises GoogleError for a body that is not one."""
    try:
        document = orjson.loads(body)
        held = document[_HTTP_BODY]
        content_type, text = held.get("contentType", ""), held.get("data", "")
        content = base64.b64decode(text.translate({ord("-"): "+", ord("_"): "/"}), validate=True)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, binascii.Error, ValueError):
        raise invalid(
            "Invalid JSON payload received. There must be an 'httpBody' with 'contentType' and 'data'"
        ) from None
    if type(content_type) is not str or not _VALUE.fullmatch(content_type):
        raise invalid("Invalid value at 'http_body.content_type'")
    passed = _passed(headers, _NOT_PASSED | _OF_THE_ENVELOPE)
    return RawRequest({**passed, **({"Content-Type": content_type} if content_type else {})}, content)


def passed_back(headers: Iterable[tuple[str, str]], deployment: Deployment) -> dict[str, str]:
    """The headers of the answer to the caller: the container's and the platform's."""
    passed = {
        name: value
        for name, value in headers
        if name.lower() not in _NOT_PASSED_BACK and _NAME.fullmatch(name) and _VALUE.fullmatch(value)
    }
    own = {
        "X-Vertex-AI-Endpoint-Id": deployment.endpoint_id,
        "X-Vertex-AI-Deployed-Model-Id": deployment.deployed_model_id,
        "X-Vertex-AI-Model": deployment.model,
        "X-Vertex-AI-Model-Version-Id": deployment.model_version_id,
    }
    taken = {name.lower() for name in own}
    return {name: value for name, value in passed.items() if name.lower() not in taken} | own


def sdk_answer(headers: Iterable[tuple[str, str]], body: bytes) -> bytes:
    """The container's answer in the SDK's envelope."""
    content_type = next((value for name, value in headers if name.lower() == _CONTENT_TYPE), "")
    held: dict[str, Any] = {"contentType": content_type, "data": base64.b64encode(body).decode()}
    return orjson.dumps(held)


def sdk_answers(headers: list[tuple[str, str]], parts: Iterable[bytes]) -> Iterator[bytes]:
    """A streamed answer for the SDK: a JSON list with an envelope for each part, as the parts arrive."""
    mark = b"["
    for part in parts:
        yield mark + sdk_answer(headers, part)
        mark = b",\n"
    yield b"[]" if mark == b"[" else b"]"


def _passed(headers: Iterable[tuple[str, str]], without: frozenset[str]) -> dict[str, str]:
    passed = {}
    for name, value in headers:
        if name.lower() in without or name.lower().startswith(_GOOGLE_PREFIX):
            continue
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise invalid(f"the header {name[:100]!r} is malformed")
        passed[name] = value
    return passed


# Source: docs/spec/vertex.md section A3.


_INSTANCES, _PARAMETERS = "instances", "parameters"
_PREDICT_FIELDS = frozenset({"endpoint", _INSTANCES, _PARAMETERS})
_EXPLAIN_FIELDS = _PREDICT_FIELDS | {"deployedModelId", "explanationSpecOverride"}


class PredictionFault(Exception):
    """The container's answer has no predictions. The text continues the words `the container`."""


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """A request for the predictions of `count` instances; `body` is sent to the container."""

    count: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Predictions:
    """`metadata` is the container's metadata of the whole request, None for none."""

    values: list[Any]
    metadata: Any = None

    def fault(self, count: int) -> str:
        """The reason why these do not answer `count` instances; "" if they do."""
        return "" if len(self.values) == count else f"answered {count} instances with {len(self.values)} predictions"


def read_predict_request(body: bytes, *, is_explain: bool = False) -> PredictRequest:
    """Read the body of a call. Raises GoogleError for a body that the API refuses without the container."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from None
    if type(document) is not dict:
        raise invalid("Invalid JSON payload received. Unexpected token: the root must be an object")
    for name in document.keys() - (_EXPLAIN_FIELDS if is_explain else _PREDICT_FIELDS):
        raise invalid(f'Invalid JSON payload received. Unknown name "{name[:100]}": Cannot find field.')
    instances = document.get(_INSTANCES)
    if type(instances) is not list or not instances:
        raise invalid("Invalid value at 'instances': there must be a list of at least one instance")
    return predict_request(instances, document.get(_PARAMETERS))


def predict_request(instances: list[Any], parameters: Any = None) -> PredictRequest:
    """The request to the container for these instances."""
    document = {_INSTANCES: instances}
    if parameters is not None:
        document[_PARAMETERS] = parameters
    return PredictRequest(len(instances), orjson.dumps(document))


def read_predictions(body: bytes) -> Predictions:
    """The predictions in the container's answer with status 200. Raises PredictionFault."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PredictionFault(f"answered 200 with a body that is not JSON: {error}") from None
    if type(document) is not dict or type(document.get("predictions")) is not list:
        raise PredictionFault("answered 200 without a list of 'predictions'")
    return Predictions(document["predictions"], document.get("metadata"))
