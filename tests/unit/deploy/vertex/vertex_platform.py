"""The parts of Vertex AI's API that the deployment commands use: a server that reads and writes its real messages.

It keeps the rules that the order of the calls depends on: what is deployed or has traffic cannot be taken away.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.cloud.aiplatform_v1 import (
    BatchPredictionJob,
    CreateBatchPredictionJobRequest,
    CreateEndpointRequest,
    DeployedModel,
    DeployModelRequest,
    DeployModelResponse,
    Endpoint,
    JobState,
    ListEndpointsResponse,
    Model,
    UndeployModelRequest,
    UndeployModelResponse,
    UpdateEndpointRequest,
    UploadModelRequest,
    UploadModelResponse,
)
from google.protobuf import json_format

PLACE = "projects/my-project/locations/us-central1"
_TYPE = "type.googleapis.com/google.cloud.aiplatform.v1."
_EMPTY = {"@type": "type.googleapis.com/google.protobuf.Empty", "value": {}}
_NUMBERS = {"BAD_REQUEST": 400, "PERMISSION_DENIED": 403, "NOT_FOUND": 404, "ALREADY_EXISTS": 409}


class Refused(Exception):
    """A refusal; the arguments are the status as Google names it, and a text."""


class VertexPlatform:
    """A context manager. `calls` has (RPC, message or name) in order; `address` has a scheme.

    `pending` is how often an operation is asked for before it is done; `fault` is why it fails then, "" where it does
    not. Calls with a name in `failing` are refused.
    """

    def __init__(self) -> None:
        self.models: dict[str, list[Model]] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.jobs: list[BatchPredictionJob] = []
        self.calls: list[tuple[str, Any]] = []
        self.failing: set[str] = set()
        self.pending = 0
        self.fault = ""
        self._operation: dict[str, Any] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._connection())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def asked(self) -> list[str]:
        return [name for name, _ in self.calls]

    def __enter__(self) -> VertexPlatform:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def deployed(self, endpoint: str, split: dict[str, int], **labels: str) -> str:
        """Add an endpoint with a deployed model for each entry of `split` and return its name."""
        name = f"{PLACE}/endpoints/{endpoint}"
        models = [DeployedModel(id=each, display_name=f"model {each}") for each in split]
        labels = {key.replace("_", "-"): value for key, value in labels.items()}
        self.endpoints[name] = Endpoint(name=name, deployed_models=models, traffic_split=split, labels=labels)
        return name

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
        """The document of the response. Raises Refused."""
        for verb, pattern, asked in _ROUTES:
            found = re.fullmatch(pattern, path)
            if verb == method and found:
                name = asked.__name__.removeprefix("_")
                if name in self.failing:
                    raise Refused("PERMISSION_DENIED", f"no right to {name}")
                return asked(self, found[1], query, body)
        raise Refused("NOT_FOUND", f"no such call: {method} {path}")

    def seen(self, name: str, message: Any) -> None:
        self.calls.append((name, message))

    def endpoint(self, name: str) -> Endpoint:
        if name not in self.endpoints:
            raise Refused("NOT_FOUND", f"{name} is not found")
        return self.endpoints[name]

    def done(self, response: dict[str, Any]) -> dict[str, Any]:
        """An operation, which is done at once unless it is `pending`."""
        end = {"error": {"code": 9, "message": self.fault}} if self.fault else {"response": response}
        self._operation = {"name": f"{PLACE}/operations/1", "done": True, **end}
        return self._operation if not self.pending else {"name": self._operation["name"]}

    def operation(self) -> dict[str, Any]:
        self.pending -= 1
        return self._operation if self.pending <= 0 else {"name": self._operation["name"]}

    def _connection(self) -> type[BaseHTTPRequestHandler]:
        platform = self

        class Connection(BaseHTTPRequestHandler):
            def _reply(self) -> None:
                target = urlsplit(self.path)
                query = {name: values[-1] for name, values in parse_qs(target.query).items()}
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                try:
                    status, document = 200, platform.answer(self.command, unquote(target.path), query, body)
                except Refused as error:
                    status = _NUMBERS[error.args[0]]
                    document = {"error": {"code": status, "message": error.args[1], "status": error.args[0]}}
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_DELETE = _reply

            def log_message(self, format: str, *arguments: Any) -> None:
                """Log nothing."""

        return Connection


def _document(message: Any) -> dict[str, Any]:
    made: dict[str, Any] = json_format.MessageToDict(type(message).pb(message))
    return made


def _response(message: Any) -> dict[str, Any]:
    return {"@type": _TYPE + type(message).__name__, **_document(message)}


def _upload_model(platform: VertexPlatform, parent: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    request = UploadModelRequest.from_json(body)
    request.parent = parent
    platform.seen("upload_model", request)
    name = request.parent_model or f"{parent}/models/{request.model_id}"
    if request.parent_model and name not in platform.models:
        raise Refused("NOT_FOUND", f"{name} is not found")
    if request.model_id and name in platform.models:
        raise Refused("ALREADY_EXISTS", f"{name} exists")
    versions = platform.models.setdefault(name, [])
    versions.append(request.model)
    return platform.done(_response(UploadModelResponse(model=name, model_version_id=str(len(versions)))))


def _create_endpoint(platform: VertexPlatform, parent: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    endpoint = Endpoint.from_json(body)
    request = CreateEndpointRequest(parent=parent, endpoint=endpoint, endpoint_id=query["endpointId"])
    platform.seen("create_endpoint", request)
    endpoint.name = f"{parent}/endpoints/{request.endpoint_id}"
    if endpoint.name in platform.endpoints:
        raise Refused("ALREADY_EXISTS", f"{endpoint.name} exists")
    platform.endpoints[endpoint.name] = endpoint
    return platform.done(_response(endpoint))


def _deploy_model(platform: VertexPlatform, name: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    request = DeployModelRequest.from_json(body)
    request.endpoint = name
    platform.seen("deploy_model", request)
    endpoint, model = platform.endpoint(name), request.deployed_model
    model.id = model.id or str(len(endpoint.deployed_models) + 1)
    endpoint.deployed_models.append(model)
    if request.traffic_split:
        split = dict(request.traffic_split)
        endpoint.traffic_split = {model.id if key == "0" else key: share for key, share in split.items()}
    return platform.done(_response(DeployModelResponse(deployed_model=model)))


def _update_endpoint(platform: VertexPlatform, name: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    request = UpdateEndpointRequest(endpoint=Endpoint.from_json(body))
    platform.seen("update_endpoint", request)
    if query["updateMask"] != "trafficSplit":
        raise Refused("BAD_REQUEST", f"unexpected mask {query['updateMask']}")
    endpoint, split = platform.endpoint(name), dict(request.endpoint.traffic_split)
    if sum(split.values()) != 100 or set(split) != {model.id for model in endpoint.deployed_models}:
        raise Refused("BAD_REQUEST", f"no split of this endpoint's: {split}")
    endpoint.traffic_split = split
    return _document(endpoint)


def _undeploy_model(platform: VertexPlatform, name: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    request = UndeployModelRequest.from_json(body)
    request.endpoint = name
    platform.seen("undeploy_model", request)
    endpoint, identity = platform.endpoint(name), request.deployed_model_id
    left = [model for model in endpoint.deployed_models if model.id != identity]
    split = dict(request.traffic_split or endpoint.traffic_split)
    if left and split.get(identity):
        raise Refused("BAD_REQUEST", f"{identity} has traffic")
    endpoint.deployed_models = left
    endpoint.traffic_split = {key: share for key, share in split.items() if key != identity} if left else {}
    return platform.done(_response(UndeployModelResponse()))


def _get_endpoint(platform: VertexPlatform, name: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    platform.seen("get_endpoint", name)
    return _document(platform.endpoint(name))


def _list_endpoints(platform: VertexPlatform, parent: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    """One resource per page."""
    platform.seen("list_endpoints", query["filter"])
    label = query["filter"].removeprefix("labels.").removesuffix(":*")
    found = [endpoint for endpoint in platform.endpoints.values() if label in endpoint.labels]
    at = int(query.get("pageToken", 0))
    more = str(at + 1) if at + 1 < len(found) else ""
    return _document(ListEndpointsResponse(endpoints=found[at : at + 1], next_page_token=more))


def _delete_endpoint(platform: VertexPlatform, name: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    platform.seen("delete_endpoint", name)
    if platform.endpoint(name).deployed_models:
        raise Refused("BAD_REQUEST", f"{name} has deployed models")
    del platform.endpoints[name]
    return platform.done(_EMPTY)


def _delete_model(platform: VertexPlatform, name: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    platform.seen("delete_model", name)
    if platform.models.pop(name, None) is None:
        raise Refused("NOT_FOUND", f"{name} is not found")
    return platform.done(_EMPTY)


def _delete_model_version(platform: VertexPlatform, name: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    platform.seen("delete_model_version", name)
    return platform.done(_EMPTY)


def _create_job(platform: VertexPlatform, parent: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    job = BatchPredictionJob.from_json(body)
    platform.seen("create_job", CreateBatchPredictionJobRequest(parent=parent, batch_prediction_job=job))
    return _document(BatchPredictionJob(name=f"{parent}/batchPredictionJobs/7", state=JobState.JOB_STATE_PENDING))


def _get_job(platform: VertexPlatform, name: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    platform.seen("get_job", name)
    return _document(platform.jobs.pop(0))


def _get_operation(platform: VertexPlatform, name: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
    platform.seen("get_operation", name)
    return platform.operation()


_PARENT = r"/v1/(projects/[^/]+/locations/[^/]+)"
_ENDPOINT = r"/v1/(projects/[^/]+/locations/[^/]+/endpoints/[^/:]+)"
_ROUTES: list[tuple[str, str, Callable[[VertexPlatform, str, dict[str, str], bytes], dict[str, Any]]]] = [
    ("POST", f"{_PARENT}/models:upload", _upload_model),
    ("POST", f"{_PARENT}/endpoints", _create_endpoint),
    ("GET", f"{_PARENT}/endpoints", _list_endpoints),
    ("POST", f"{_ENDPOINT}:deployModel", _deploy_model),
    ("POST", f"{_ENDPOINT}:undeployModel", _undeploy_model),
    ("PATCH", _ENDPOINT, _update_endpoint),
    ("GET", _ENDPOINT, _get_endpoint),
    ("DELETE", _ENDPOINT, _delete_endpoint),
    ("DELETE", r"/v1/(projects/[^/]+/locations/[^/]+/models/[^/:@]+)", _delete_model),
    ("DELETE", r"/v1/(projects/[^/]+/locations/[^/]+/models/[^/:]+):deleteVersion", _delete_model_version),
    ("POST", f"{_PARENT}/batchPredictionJobs", _create_job),
    ("GET", r"/v1/(projects/[^/]+/locations/[^/]+/batchPredictionJobs/[^/:]+)", _get_job),
    ("GET", r"/v1/(projects/[^/]+/locations/[^/]+/operations/[^/:]+)", _get_operation),
]
