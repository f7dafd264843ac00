"""The emulator and the platform's API on a port of this machine, as the SDK and other clients call it.

It gives containers their artifacts, environment and port, probes them, forwards calls, and stops them. Direct calls
come as calls of the REST API, and over gRPC on a port of their own.
Source: docs/spec/vertex.md sections A1 to A5 and A7.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson
from flask import Response, g, request
from werkzeug.exceptions import HTTPException, NotFound, RequestEntityTooLarge
from werkzeug.routing import BaseConverter

from trident.app.terminal import counted
from trident.tools.emulators.container import BreachReport, ContainerFault, free_port
from trident.tools.emulators.emulator import ApiServer, PlatformEmulator, PlatformOptions, Reply
from trident.tools.emulators.vertex.batch import BatchOptions, run_batch_job
from trident.tools.emulators.vertex.container import (
    STORAGE_SCHEME,
    RunningContainer,
    container_arguments,
    container_environment,
    machine_variables,
    platform_variables,
    provided,
)
from trident.tools.emulators.vertex.endpoint import (
    Deployment,
    Endpoint,
    EndpointType,
    GoogleError,
    RawRequest,
    VertexLimits,
    impossible,
    invalid,
    no_direct_predict,
    passed_back,
    read_predict_request,
    read_raw_request,
    read_sdk_request,
    refused,
    request_too_large,
    sdk_answer,
    sdk_answers,
)
from trident.tools.emulators.vertex.project import Project

if TYPE_CHECKING:
    from trident.tools.emulators.vertex.direct import DirectCalls, GrpcApi


@dataclass(frozen=True, kw_only=True)
class EmulatorOptions(PlatformOptions):
    """`model` is a gs:// address or a folder, "" for an empty project. With `batch` a job runs instead of an API.

    `arguments` are those of the container's entry point. `cache` keeps artifacts of a gs:// address for the next run.
    """

    arguments: Sequence[str] = ()
    deployment: Deployment = field(default_factory=Deployment)
    limits: VertexLimits = field(default_factory=VertexLimits)
    batch: BatchOptions | None = None


class Emulator(PlatformEmulator[EmulatorOptions]):
    platform = "vertex"

    def _run_in(self, folder: Path, stopped: threading.Event) -> bool:
        """Returns False if an instance of the job has no prediction."""
        options, deployment = self._options, self._options.deployment
        self._folder = folder
        storage_uri = provided(options.model, folder / "artifacts", stopped.is_set) if options.model else ""
        if options.batch is not None:
            options.batch.check()
            running = self._deployed(deployment, options.limits, storage_uri, options.arguments, options.variables)
            with ThreadPoolExecutor(1, "batch job") as pool, contextlib.ExitStack() as held:
                held.callback(running.stop)
                if not running.wait_until_ready(stopped.is_set):
                    return False
                self._say("the container is ready; the job runs")
                future = pool.submit(run_batch_job, options.batch, running.endpoint, stopped.is_set)
                future.add_done_callback(lambda _: stopped.set())
                stopped.wait()
            # The container has ended, so the job waits for no answer.
            counts = future.result()
            self._say(counts.text())
            return counts.is_whole and not counts.failed
        project = Project(self._start)
        ready = "the project is empty; its API"
        if options.model:
            project.begin_with(deployment, options.limits, self._model(storage_uri))
            ready = f"the container is ready; {deployment.endpoint}"
        api = VertexApi(project, options.api_port, self.report, self._say)
        with contextlib.closing(api), contextlib.closing(project):
            if self._serve(api, project, stopped, ready):
                self._say(counted(api.calls, "call"))
        return True

    def _model(self, storage_uri: str) -> dict[str, Any]:
        """The document of the model that the options describe."""
        options, deployment = self._options, self._options.deployment
        return {
            "name": deployment.model,
            "displayName": deployment.display_name,
            "versionId": deployment.model_version_id,
            "artifactUri": storage_uri,
            "containerSpec": {
                "args": list(options.arguments),
                "env": [{"name": name, "value": value} for name, value in options.variables.items()],
                "predictRoute": deployment.predict_route,
                "healthRoute": deployment.health_route,
                "invokeRoutePrefix": "/*" if deployment.is_invoked else "",
                "grpcPorts": [{"containerPort": deployment.grpc_port}] if deployment.grpc_port else [],
            },
        }

    def _start(self, deployment: Deployment, limits: VertexLimits, model: Mapping[str, Any]) -> RunningContainer:
        """Start the container of a model. The server takes the place of its image."""
        spec = model.get("containerSpec", {})
        variables = {each["name"]: each.get("value", "") for each in spec.get("env", ())}
        return self._deployed(deployment, limits, model.get("artifactUri", ""), spec.get("args", ()), variables)

    def _deployed(
        self,
        deployment: Deployment,
        limits: VertexLimits,
        storage_uri: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
    ) -> RunningContainer:
        options, port = self._options, free_port()
        disk = Path(tempfile.mkdtemp(prefix="disk-", dir=self._folder))
        platform = platform_variables(deployment, port, storage_uri)
        cache = options.cache if storage_uri.startswith(STORAGE_SCHEME) else None
        machine = machine_variables(free_port(), disk, cache)
        return RunningContainer(
            [*options.command, *container_arguments(arguments, platform, variables)],
            container_environment(options.environment, machine, platform, variables),
            port,
            deployment,
            limits,
            self.report,
            self._say,
        )


# --- the REST API

_OK = 200
_JSON = {"Content-Type": "application/json; charset=UTF-8"}
_LOCATION = "/<any(v1, v1beta1):version>/projects/<project>/locations/<location>/"
_PREDICT, _RAW, _STREAM, _EXPLAIN = "predict", "rawPredict", "streamRawPredict", "explain"
_DIRECT = "directRawPredict"
_VERBS = (_PREDICT, _RAW, _STREAM, _EXPLAIN, _DIRECT)
_FOR_PRODUCTS = ("directPredict", "streamDirectPredict", "streamingPredict")
_EXPLAIN_NOTE = (
    "explain: the platform computes attributions itself, from the model's explanation spec and predictions for changed "
    "instances; here they are empty"
)
# A body in the SDK's envelope is larger by this factor and this number of bytes.
_SDK_FACTOR = 1.4
_SDK_OVERHEAD = 4096


class VertexApi(ApiServer):
    def __init__(self, project: Project, port: int, report: BreachReport, say: Callable[[str], None]) -> None:
        super().__init__(port, "prediction API")
        self._project = project
        self._report = report
        self._say = say
        self._grpc: GrpcApi | None = None
        self._notes: set[str] = set()
        self._notes_lock = threading.Lock()
        self.application.url_map.converters["id"] = _Id
        self.application.url_value_preprocessor(_take_location)
        self.application.register_error_handler(GoogleError, _error)
        self.application.register_error_handler(HTTPException, _unknown)
        for method, path, view in control_calls(project, self.address):
            self.route(method, _LOCATION + path, view)
        endpoint = f"{_LOCATION}endpoints/<id:identity>"
        self.route("POST", f"{endpoint}:<id:verb>", self._call)
        self.route("", f"{endpoint}/invoke/<path:_route>", self._invoke)
        self.route("", f"{endpoint}/deployedModels/<id:model>/invoke/<path:_route>", self._invoke)

    def __enter__(self) -> Self:
        super().__enter__()
        if self._project.has_direct_calls:
            from trident.tools.emulators.vertex.direct import GrpcApi

            self._grpc = GrpcApi(self._directly_called, self.count)
            self._say(f"gRPC calls are answered at {self._grpc.address}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._grpc is not None:
            self._grpc.stop()
        super().__exit__()

    @contextmanager
    def _directly_called(self, endpoint_id: str) -> Iterator[DirectCalls]:
        with self._project.called(endpoint_id) as endpoint:
            assert endpoint.direct is not None
            yield endpoint.direct

    def _call(self, identity: str, verb: str) -> Response:
        with ExitStack() as held:
            endpoint = held.enter_context(self._project.called(identity))
            deployment = endpoint.deployment
            if verb in _FOR_PRODUCTS:
                raise no_direct_predict(verb)
            if verb not in _VERBS:
                raise NotFound
            if deployment.is_invoked:
                raise impossible(f"{verb} is not available for a model with an invoke route prefix: call …/invoke/PATH")
            if verb == _STREAM and deployment.endpoint_type is not EndpointType.DEDICATED:
                raise impossible("streamRawPredict of a custom model needs a dedicated endpoint")
            if verb == _DIRECT and not deployment.grpc_port:
                raise impossible("a direct call needs a model whose container has grpcPorts: --grpc-port")
            # Generated clients send this, and expect the answer in the envelope.
            from_sdk = request.args.get("$alt", "").startswith("json")
            body = self._body(endpoint, has_envelope=from_sdk or verb == _DIRECT)
            self.count()
            if verb in (_PREDICT, _EXPLAIN):
                return self._predict(body, endpoint, is_explain=verb == _EXPLAIN)
            if verb == _DIRECT:
                assert endpoint.direct is not None  # the model has a gRPC port
                output = endpoint.direct.predict(*read_direct_request(body))
                return _json({"output": base64.b64encode(output).decode()})
            raw = self._raw(body, endpoint, from_sdk=from_sdk)
            if verb == _RAW:
                answer = endpoint.ask("POST", endpoint.deployment.predict_path, raw)
                headers = passed_back(answer.headers, endpoint.deployment)
                if not from_sdk:
                    return Reply(answer.body, answer.status, headers)
                if answer.status != _OK:
                    raise refused(answer.status, answer.text)
                return Reply(sdk_answer(answer.headers, answer.body), _OK, {**headers, **_JSON})
            return self._stream(raw, endpoint, held, from_sdk=from_sdk)

    def _invoke(self, identity: str, _route: str, model: str | None = None) -> Response:
        with self._project.called(identity, model) as endpoint:
            if not endpoint.deployment.is_invoked:
                raise impossible("invoke needs a model with an invoke route prefix: --invoke-route-prefix='/*'")
            raw = self._raw(self._body(endpoint), endpoint)
            self.count()
            # As it was sent, encoded and with its query.
            route = "/" + request.environ["RAW_URI"].split("/", 9 if model is None else 11)[-1]
            answer = endpoint.ask(request.method, route, raw)
            return Reply(answer.body, answer.status, passed_back(answer.headers, endpoint.deployment))

    def _body(self, endpoint: Endpoint, *, has_envelope: bool = False) -> bytes:
        most = endpoint.limits.body_bytes
        request.max_content_length = int(most * _SDK_FACTOR) + _SDK_OVERHEAD if has_envelope else most
        try:
            return request.get_data()
        except RequestEntityTooLarge:
            raise self._too_large(request.content_length or most + 1, most) from None

    def _too_large(self, length: int, most: int) -> GoogleError:
        self._report.add(f"the caller sent a request body of {length} bytes, where the endpoint takes {most}")
        return request_too_large(length, most)

    def _predict(self, body: bytes, endpoint: Endpoint, *, is_explain: bool) -> Response:
        if len(body) > endpoint.limits.body_bytes:
            raise self._too_large(len(body), endpoint.limits.body_bytes)
        given = read_predict_request(body, is_explain=is_explain)
        if is_explain:
            self._note(_EXPLAIN_NOTE)
        return _json(endpoint.explain(given) if is_explain else endpoint.predict(given))

    def _note(self, text: str) -> None:
        """Print `text` the first time it is given."""
        with self._notes_lock:
            is_new = text not in self._notes
            self._notes.add(text)
        if is_new:
            self._say(text)

    def _raw(self, body: bytes, endpoint: Endpoint, *, from_sdk: bool = False) -> RawRequest:
        if not from_sdk:
            return read_raw_request(request.headers, body)
        raw = read_sdk_request(request.headers, body)
        if len(raw.body) > endpoint.limits.body_bytes:
            raise self._too_large(len(raw.body), endpoint.limits.body_bytes)
        return raw

    def _stream(self, raw: RawRequest, endpoint: Endpoint, held: ExitStack, *, from_sdk: bool) -> Response:
        stream = held.enter_context(endpoint.stream(raw))
        headers, parts = passed_back(stream.headers, endpoint.deployment), self._parts(stream.parts())
        if not from_sdk:
            return Reply.of_parts(parts, stream.status, headers, held)
        if stream.status == _OK:
            return Reply.of_parts(sdk_answers(stream.headers, parts), _OK, {**headers, **_JSON}, held)
        try:
            text = stream.whole(endpoint.limits.body_bytes).text
        except ContainerFault as fault:
            self._report.add(f"a streamed answer: the container {fault}")
            text = f"the container {fault}"
        raise refused(stream.status, text)

    def _parts(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from parts
        except ContainerFault as fault:
            self._report.add(f"a streamed answer: the container {fault}")
            raise ConnectionAbortedError from fault


class _Id(BaseConverter):
    regex = "[^/:]+"


def _take_location(view: str | None, values: dict[str, Any] | None) -> None:
    if values:
        del values["version"], values["project"]
        g.location = values.pop("location")


def _json(document: Any) -> Response:
    return Reply(orjson.dumps(document), _OK, _JSON)


def _error(error: GoogleError) -> Response:
    return Reply(error.body(), error.code, _JSON)


def _unknown(error: HTTPException) -> Response:
    if not isinstance(error, NotFound):
        return _error(GoogleError(error.code or 400, error.description or ""))
    calls = ", ".join(f":{verb}" for verb in _VERBS)
    known = f"/v1/projects/…/locations/…/endpoints/…{calls}, /invoke/…"
    return _error(GoogleError(404, f"'{request.path[:200]}' is not a call of the emulator: {known}"))


Document = dict[str, Any]


def control_calls(project: Project, address: str) -> list[tuple[str, str, Callable[..., Document]]]:
    """The method, the path below the location, and what does the call; `address` is the API's."""
    return [
        ("POST", "models:upload", lambda: project.upload(g.location, _body())),
        ("GET", "models", project.models),
        ("GET", "models/<id:reference>", project.model),
        ("DELETE", "models/<id:reference>", project.delete_model),
        ("DELETE", "models/<id:reference>:deleteVersion", project.delete_model),
        ("POST", "endpoints", lambda: project.create_endpoint(g.location, _body(), request.args.get("endpointId", ""))),
        ("GET", "endpoints", lambda: project.endpoints(request.args.get("filter", ""), address)),
        ("GET", "endpoints/<id:identity>", lambda identity: project.endpoint(identity, address)),
        (
            "PATCH",
            "endpoints/<id:identity>",
            lambda identity: project.update_endpoint(identity, _body(), request.args.get("updateMask", ""), address),
        ),
        ("DELETE", "endpoints/<id:identity>", project.delete_endpoint),
        ("POST", "endpoints/<id:identity>:deployModel", lambda identity: project.deploy(identity, _body())),
        ("POST", "endpoints/<id:identity>:undeployModel", lambda identity: project.undeploy(identity, _body())),
        ("POST", "batchPredictionJobs", lambda: project.jobs.create(g.location, _body())),
        ("GET", "batchPredictionJobs/<id:number>", project.jobs.job),
        ("GET", "operations/<id:name>", project.operation),
        ("GET", "<path:of>/operations/<id:name>", lambda of, name: project.operation(name)),
    ]


def _body() -> Document:
    try:
        document = orjson.loads(request.get_data() or b"{}")
    except orjson.JSONDecodeError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from None
    if type(document) is not dict:
        raise invalid("Invalid JSON payload received. The root must be an object")
    return document


# --- direct calls


def read_direct_request(body: bytes) -> tuple[str, bytes]:
    """The method and the message of a call of the REST API. Raises GoogleError for a body that has neither."""
    try:
        document = orjson.loads(body)
        method, text = document["methodName"], document["input"]
        return str(method), base64.b64decode(text.translate({ord("-"): "+", ord("_"): "/"}), validate=True)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, binascii.Error, ValueError):
        raise invalid("Invalid JSON payload received. There must be a 'methodName', and an 'input' in base64") from None
