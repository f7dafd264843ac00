"""An endpoint: its limits, deployment and errors, and the calls that it forwards to the container over HTTP and gRPC.

Source: docs/spec/vertex.md sections A1 to A5.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from trident.core.errors import installation
from trident.core.grpc.status import Status
from trident.tools.emulators.container import (
    BreachReport,
    ClientClosed,
    ContainerAnswer,
    ContainerClient,
    ContainerFault,
    ContainerStream,
    read_json,
    write_json,
)

if TYPE_CHECKING:
    from trident.tools.emulators.vertex.direct import DirectCalls

_MB = 1_000_000


class EndpointType(StrEnum):
    """The kind of an endpoint, which decides its limits."""

    DEDICATED = "dedicated"
    SHARED = "shared"


LONGEST_INFERENCE_S = 3600.0
"""The highest inference timeout of a dedicated endpoint; a shared endpoint's cannot be set."""
LONGEST_DEPLOYMENT_S = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexLimits:
    """Times in seconds, sizes in bytes; the defaults are a dedicated endpoint's. Tests make them shorter."""

    liveness_tries: int = 4
    """Failed connections after which a container that does not listen is restarted."""
    liveness_interval_s: float = 10.0
    connect_s: float = 10.0
    """Until the container accepts the connection of a request or a health probe."""
    health_s: float = 10.0
    health_interval_s: float = 10.0
    health_failures: int = 4
    """Consecutive failed probes after which the container gets no calls."""
    deployment_s: float = 1800.0
    """From the start until the first successful health probe."""
    inference_s: float = 600.0
    stop_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    body_bytes: int = 10 * _MB
    """The body of a request, and of an answer that is not streamed."""


def online_limits(
    endpoint_type: EndpointType, deployment_s: float | None = None, inference_s: float | None = None
) -> VertexLimits:
    """The limits of an endpoint; None is the platform's default."""
    is_shared = endpoint_type is EndpointType.SHARED
    return VertexLimits(
        deployment_s=deployment_s or VertexLimits().deployment_s,
        inference_s=inference_s or (60.0 if is_shared else VertexLimits().inference_s),
        body_bytes=_MB * 3 // 2 if is_shared else VertexLimits().body_bytes,
    )


def batch_limits(deployment_s: float | None = None) -> VertexLimits:
    """The limits of a batch prediction job: it waits longer for its model, and sizes are not documented."""
    return VertexLimits(deployment_s=deployment_s or 2400.0, body_bytes=1 << 30)


PROJECT_NUMBER = "123456789012"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Ids are texts of digits. `predict_route` and `health_route` are "" for the platform's default routes,
    and `grpc_port` is 0 if the model names none.

    `is_invoked`: the model has an invoke route prefix, so callers reach every path of the container by `invoke` only.
    """

    project_number: str = PROJECT_NUMBER
    location: str = "us-central1"
    endpoint_id: str = "1234567890123456789"
    deployed_model_id: str = "2345678901234567890"
    model_id: str = "3456789012345678901"
    model_version_id: str = "1"
    display_name: str = "model"
    endpoint_type: EndpointType = EndpointType.DEDICATED
    is_invoked: bool = False
    predict_route: str = ""
    health_route: str = ""
    grpc_port: int = 0

    @property
    def endpoint(self) -> str:
        return f"{self._location}/endpoints/{self.endpoint_id}"

    @property
    def model(self) -> str:
        return f"{self._location}/models/{self.model_id}"

    @property
    def predict_path(self) -> str:
        return self.predict_route or f"{self.health_form}:predict"

    @property
    def health_path(self) -> str:
        return self.health_route or self.health_form

    @property
    def health_form(self) -> str:
        return f"/v1/endpoints/{self.endpoint_id}/deployedModels/{self.deployed_model_id}"

    @property
    def _location(self) -> str:
        return f"projects/{self.project_number}/locations/{self.location}"


# The texts about sizes are quoted from reports of the platform's users. It is not documented that an error of the
# container keeps its status and becomes the message.
_LONGEST_MESSAGE = 64 << 10
STATUSES = {
    400: Status.INVALID_ARGUMENT,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    409: Status.ABORTED,
    429: Status.RESOURCE_EXHAUSTED,
    499: Status.CANCELLED,
    500: Status.INTERNAL,
    501: Status.UNIMPLEMENTED,
    503: Status.UNAVAILABLE,
    504: Status.DEADLINE_EXCEEDED,
}
_ERRORS = range(400, 600)
_CLIENT_ERRORS = range(400, 500)


class GoogleError(Exception):
    """`code` is the HTTP status; `status` the canonical code, whose name and number are those of gRPC."""

    def __init__(self, code: int, message: str, status: Status | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        other = Status.FAILED_PRECONDITION if code in _CLIENT_ERRORS else Status.INTERNAL
        self.status = status or STATUSES.get(code, other)

    def body(self) -> bytes:
        return orjson.dumps({"error": {"code": self.code, "message": self.message, "status": self.status.name}})


def invalid(message: str) -> GoogleError:
    return GoogleError(400, message)


def impossible(message: str) -> GoogleError:
    """The error for a valid call that this deployment does not support."""
    return GoogleError(400, message, Status.FAILED_PRECONDITION)


def no_direct_predict(name: str) -> GoogleError:
    """The error for a call of typed tensors, which only the platform's own model servers take."""
    return GoogleError(
        501,
        f"{name} is for the platform's own products and frameworks: call directRawPredict, whose input is a message of "
        "the container's own service",
    )


def request_too_large(size: int, most: int) -> GoogleError:
    return impossible(f"The request size ({size} bytes) exceeds {most / 1_000_000:.3f}MB limit.")


def response_too_large(deployment: Deployment, most: int) -> GoogleError:
    names = f"endpoint_id: {deployment.endpoint_id}, deployed_model_id: {deployment.deployed_model_id}"
    return invalid(f"Failed to handle request. {names} with error: `Response size too large; max is {most}.`")


def refused(status: int, text: str) -> GoogleError:
    """The error for an answer of the container with `status`, which is not 200, and `text`."""
    return GoogleError(
        status if status in _ERRORS else 500, text[:_LONGEST_MESSAGE] or f"the container answered {status}"
    )


# --- calls

_OK = 200
GRPC_INSTALLATION = installation("tools")
_JSON = {"Content-Type": "application/json"}


class Endpoint:
    """Forwards calls by `client` to the container of `deployment` while `has_traffic` returns true. Any thread."""

    def __init__(
        self,
        client: ContainerClient,
        deployment: Deployment,
        limits: VertexLimits,
        report: BreachReport,
        has_traffic: Callable[[], bool],
    ) -> None:
        self._client = client
        self.deployment = deployment
        self.limits = limits
        self._report = report
        self._has_traffic = has_traffic
        self.direct = _direct_calls(self, report, has_traffic) if deployment.grpc_port else None

    def predict(self, request: PredictRequest) -> dict[str, Any]:
        """The predictions, with the platform's description of the model. Raises GoogleError."""
        values, metadata = self.predictions(request)
        return {
            "predictions": values,
            "deployedModelId": self.deployment.deployed_model_id,
            "model": self.deployment.model,
            "modelDisplayName": self.deployment.display_name,
            "modelVersionId": self.deployment.model_version_id,
            **({} if metadata is None else {"metadata": metadata}),
        }

    def explain(self, request: PredictRequest) -> dict[str, Any]:
        """The predictions with an empty explanation for each instance. Raises GoogleError.

        The platform computes explanations itself, from the container's predictions for slightly changed instances, by
        the model's explanation spec.
        """
        values, _ = self.predictions(request)
        return {
            "explanations": [{"attributions": []} for _ in range(request.count)],
            "deployedModelId": self.deployment.deployed_model_id,
            "predictions": values,
        }

    def predictions(self, request: PredictRequest) -> tuple[list[Any], Any]:
        """The container's predictions, and its metadata or None. Raises GoogleError.

        Another number of predictions is a breach, and the caller's to judge.
        """
        path, fault = self.deployment.predict_path, ""
        answer = self.ask("POST", path, RawRequest(_JSON, request.body))
        if answer.status != _OK:
            raise refused(answer.status, answer.text)
        try:
            document = read_json(answer.body)
            if type(document) is not dict or type(document.get("predictions")) is not list:
                fault = "answered 200 without a list of 'predictions'"
        except ValueError as error:
            fault = f"answered 200 with a body that is not JSON: {error}"
        if fault:
            self._report.add(f"POST {path}: the container {fault}")
            raise GoogleError(500, f"the container {fault}")
        values: list[Any] = document["predictions"]
        if fault := request.miscount(values):
            self._report.add(f"POST {path}: the container {fault}")
        return values, document.get("metadata")

    @contextmanager
    def stream(self, request: RawRequest) -> Iterator[ContainerStream]:
        """The answer of the predict route as a stream. Reading it raises ContainerFault."""
        with ExitStack() as stack:
            with self._errors(f"POST {self.deployment.predict_path}"):
                stream = stack.enter_context(
                    self._client.open(
                        "POST",
                        self.deployment.predict_path,
                        headers=request.headers,
                        body=request.body,
                        within_s=self.limits.inference_s,
                    )
                )
            yield stream

    def ask(self, method: str, path: str, request: RawRequest) -> ContainerAnswer:
        """The container's answer with any status. Raises GoogleError if there is none."""
        # Without a body, only POST is sent with a Content-Length.
        body = None if method != "POST" and not request.body else request.body
        with self._errors(f"{method} {path.partition('?')[0]}"):
            return self._client.ask(method, path, headers=request.headers, body=body, within_s=self.limits.inference_s)

    @contextmanager
    def _errors(self, request: str) -> Iterator[None]:
        """Turn what keeps a request from its answer into GoogleError."""
        if not self._has_traffic():
            raise unhealthy()
        try:
            yield
        except ClientClosed:
            raise GoogleError(503, "The model is being undeployed") from None
        except ContainerFault as fault:
            self._report.add(f"{request}: the container {fault}")
            if fault.is_large:
                raise response_too_large(self.deployment, self.limits.body_bytes) from fault
            raise GoogleError(504 if fault.is_late else 503, f"the container {fault}") from fault


def unhealthy() -> GoogleError:
    return GoogleError(503, "The model is unhealthy: the health probes of its container fail")


def _direct_calls(endpoint: Endpoint, report: BreachReport, has_traffic: Callable[[], bool]) -> DirectCalls:
    """Raises GoogleError without the package grpcio."""
    try:
        from trident.tools.emulators.vertex.direct import DirectCalls
    except ModuleNotFoundError:
        raise impossible(f"a model with grpcPorts needs the package grpcio here: {GRPC_INSTALLATION}") from None
    return DirectCalls(endpoint.deployment, endpoint.limits, report, has_traffic)


# --- the forms of requests and answers

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


_INSTANCES, _PARAMETERS = "instances", "parameters"
_PREDICT_FIELDS = frozenset({"endpoint", _INSTANCES, _PARAMETERS})
_EXPLAIN_FIELDS = _PREDICT_FIELDS | {"deployedModelId", "explanationSpecOverride"}


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """A request for the predictions of `count` instances; `body` is sent to the container."""

    count: int
    body: bytes

    def miscount(self, values: list[Any]) -> str:
        """The fault of a container that answers with another number of predictions; "" for the right one."""
        found = len(values)
        return "" if found == self.count else f"answered {self.count} instances with {found} predictions"


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
    return PredictRequest(len(instances), write_json(document))
