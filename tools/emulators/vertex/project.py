"""The platform's resources behind a deployment: models with their versions, endpoints with their deployed models, and
the long-running operations that change them.

Documents are the API's, in JSON. A deployed model is one container, whatever its number of replicas.
Source: docs/spec/vertex.md section A7.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from trident.core.errors import ConfigInvalid
from trident.core.grpc.status import Status
from trident.tools.emulators.vertex.batch import BatchJobs
from trident.tools.emulators.vertex.container import RunningContainer
from trident.tools.emulators.vertex.endpoint import (
    PROJECT_NUMBER,
    Deployment,
    Endpoint,
    EndpointType,
    GoogleError,
    VertexLimits,
    impossible,
    invalid,
    online_limits,
)

_CREATED = "2026-01-01T00:00:00Z"
_TYPE = "type.googleapis.com/google.cloud.aiplatform.v1."
_EMPTY = {"@type": "type.googleapis.com/google.protobuf.Empty", "value": {}}
_ALL = 100
# Has no factor in common with 100, so that every 100 calls are divided exactly by the split, and mixed.
_STEP = 61
_THIS = "0"
_OPERATIONS = 8
_ID = re.compile(r"[a-z0-9_-]{1,63}")
StartContainer = Callable[[Deployment, VertexLimits, Mapping[str, Any]], RunningContainer]


@dataclass(eq=False, slots=True)
class DeployedModel:
    """`resource` is the API's document, `stop` ends the container, and `calls` is how many it answers now."""

    resource: dict[str, Any]
    endpoint: Endpoint
    stop: Callable[[], None]
    calls: int = 0


@dataclass(eq=False, slots=True)
class _Endpoint:
    resource: dict[str, Any]
    deployed: dict[str, DeployedModel] = field(default_factory=dict)
    split: dict[str, int] = field(default_factory=dict)
    turn: int = 0

    def chosen(self, deployed_model_id: str | None) -> DeployedModel:
        """The named one, or the next one by the traffic split. Raises GoogleError."""
        if deployed_model_id is not None:
            if deployed_model_id not in self.deployed:
                raise GoogleError(404, f"{deployed_model_id} is not found among the models of {self.resource['name']}")
            return self.deployed[deployed_model_id]
        self.turn += 1
        place = self.turn * _STEP % _ALL
        for identity, share in self.split.items():
            place -= share
            if place < 0:
                return self.deployed[identity]
        raise impossible(f"{self.resource['name']} has no deployed model with traffic")

    def document(self, address: str) -> dict[str, Any]:
        """The resource; `address` is a dedicated endpoint's, `host:port`."""
        is_dedicated = self.resource.get("dedicatedEndpointEnabled")
        return {
            **self.resource,
            "deployedModels": [each.resource for each in self.deployed.values()],
            "trafficSplit": self.split,
            **({"dedicatedEndpointDns": address} if is_dedicated else {}),
        }


class Project:
    """Starts containers with `start`, whose last argument is a model's document. Any thread; `close` stops them all."""

    def __init__(self, start: StartContainer) -> None:
        self._start = start
        self._models: dict[str, dict[str, dict[str, Any]]] = {}
        self._endpoints: dict[str, _Endpoint] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(_OPERATIONS, "operation")
        self.jobs = BatchJobs(self._start_for_job)
        self._first: Callable[[], bool] = lambda: True
        self.has_direct_calls = find_spec("grpc") is not None
        """True if models may be called over gRPC."""

    # --- the model that the emulator was started with

    def begin_with(self, deployment: Deployment, limits: VertexLimits, model: dict[str, Any]) -> None:
        """Have `wait_until_ready` deploy `model` as `deployment`, to which all calls go."""
        self._models[deployment.model_id] = {deployment.model_version_id: {**model, "versionAliases": ["default"]}}
        resource = {
            **_dated(deployment.endpoint, {"displayName": deployment.display_name}),
            "dedicatedEndpointEnabled": deployment.endpoint_type is EndpointType.DEDICATED,
        }
        self._endpoints[deployment.endpoint_id] = _Endpoint(resource)
        self.has_direct_calls = bool(deployment.grpc_port)
        document = {"model": deployment.model, "displayName": deployment.display_name}
        self._first = lambda: self._run(deployment, limits, model, document, {_THIS: _ALL})

    def wait_until_ready(self, is_stopped: Callable[[], bool]) -> bool:
        """Deploy the first model. False if that fails, or `is_stopped` returns true before."""
        with ThreadPoolExecutor(1, "first deployment") as pool:
            first = pool.submit(self._first)
            while not first.done():
                if is_stopped():
                    self._stopped.set()
                threading.Event().wait(0.02)
        return first.result()

    def watch(self, stopped: threading.Event) -> None:
        """The containers are probed on threads of their own."""
        stopped.wait()

    def close(self) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)
        self.jobs.close()
        stops = [each.stop for endpoint in self._endpoints.values() for each in endpoint.deployed.values()]
        with ThreadPoolExecutor(max(1, len(stops)), "stop") as pool:
            for stopping in [pool.submit(stop) for stop in stops]:
                stopping.result()

    # --- calls

    @contextmanager
    def called(self, endpoint_id: str, deployed_model_id: str | None = None) -> Iterator[Endpoint]:
        """Give the endpoint for the next call; it is not stopped inside the context. Raises GoogleError."""
        with self._changed:
            found = self._endpoint(endpoint_id).chosen(deployed_model_id)
            found.calls += 1
        try:
            yield found.endpoint
        finally:
            with self._changed:
                found.calls -= 1
                self._changed.notify_all()

    def _endpoint(self, identity: str) -> _Endpoint:
        if identity not in self._endpoints:
            known = ", ".join(str(each.resource["name"]) for each in self._endpoints.values()) or "none"
            raise GoogleError(404, f"Endpoint `{identity}` is not found; the emulator has: {known}")
        return self._endpoints[identity]

    # --- models

    def upload(self, location: str, request: Mapping[str, Any]) -> dict[str, Any]:
        model, parent = dict(request.get("model", {})), _last(request.get("parentModel", ""))
        identity = parent or request.get("modelId") or self._number()
        if not _ID.fullmatch(identity):
            raise invalid(f"'{identity[:100]}' is not an id of a model")
        with self._changed:
            if parent:
                self._versions(parent)
            elif identity in self._models:
                raise GoogleError(409, f"the model {identity} exists", Status.ALREADY_EXISTS)
            versions = self._models.setdefault(identity, {})
            version = str(max(map(int, versions), default=0) + 1)
            aliases = set(model.get("versionAliases", ())) | (set() if versions else {"default"})
            for each in versions.values():
                each["versionAliases"] = [alias for alias in each["versionAliases"] if alias not in aliases]
            name = _name(location, "models", identity)
            versions[version] = {**_dated(name, model), "versionId": version, "versionAliases": sorted(aliases)}
        answer = {"@type": f"{_TYPE}UploadModelResponse", "model": name, "modelVersionId": version}
        return self._done(name, answer)

    def model(self, reference: str) -> dict[str, Any]:
        """The version of `ID`, `ID@VERSION` or `ID@ALIAS`. Raises GoogleError."""
        identity, _, version = _last(reference).partition("@")
        for number, document in self._versions(identity).items():
            if (version or "default") in (number, *document["versionAliases"]):
                return document
        raise GoogleError(404, f"the model {identity} has no version '{version}'")

    def _versions(self, identity: str) -> dict[str, dict[str, Any]]:
        if identity not in self._models:
            raise GoogleError(404, f"the model {identity} is not found")
        return self._models[identity]

    def models(self) -> dict[str, Any]:
        return {"models": [self.model(identity) for identity in self._models]}

    def delete_model(self, reference: str) -> dict[str, Any]:
        """A model, or of `ID@VERSION` the version."""
        identity, _, version = reference.partition("@")
        with self._changed:
            document = self.model(reference)
            name, number = document["name"], document["versionId"]
            for endpoint in self._endpoints.values():
                for each in endpoint.deployed.values():
                    if each.resource["model"] == name and (not version or each.resource["modelVersionId"] == number):
                        raise impossible(f"the model {reference} is deployed at {endpoint.resource['name']}")
            if version and "default" in document["versionAliases"]:
                raise impossible(f"{reference} is the default version: delete the model, or upload another default")
            if version:
                del self._models[identity][number]
            else:
                del self._models[identity]
        return self._done(name, _EMPTY)

    # --- endpoints

    def create_endpoint(self, location: str, document: Mapping[str, Any], identity: str) -> dict[str, Any]:
        identity = identity or self._number()
        name = _name(location, "endpoints", identity)
        with self._changed:
            if identity in self._endpoints:
                raise GoogleError(409, f"the endpoint {identity} exists", Status.ALREADY_EXISTS)
            self._endpoints[identity] = _Endpoint(_dated(name, document))
        return self._done(name, {"@type": f"{_TYPE}Endpoint", **self._endpoints[identity].resource})

    def endpoint(self, identity: str, address: str) -> dict[str, Any]:
        with self._changed:
            return self._endpoint(identity).document(address)

    def endpoints(self, condition: str, address: str) -> dict[str, Any]:
        """The endpoints that match the API's filter; the emulator knows `labels.NAME:*`."""
        label = condition.removeprefix("labels.").removesuffix(":*")
        with self._changed:
            found = [each.document(address) for each in self._endpoints.values()]
        return {"endpoints": [each for each in found if not label or label in each.get("labels", {})]}

    def update_endpoint(self, identity: str, document: Mapping[str, Any], mask: str, address: str) -> dict[str, Any]:
        if mask.replace("_s", "S") != "trafficSplit":
            raise invalid(f"the emulator updates trafficSplit, not '{mask[:100]}'")
        with self._changed:
            endpoint = self._endpoint(identity)
            endpoint.split = _checked_split(document.get("trafficSplit", {}), set(endpoint.deployed))
            return endpoint.document(address)

    def delete_endpoint(self, identity: str) -> dict[str, Any]:
        with self._changed:
            endpoint = self._endpoint(identity)
            if endpoint.deployed:
                raise impossible(f"{endpoint.resource['name']} has deployed models: undeploy them first")
            del self._endpoints[identity]
        return self._done(endpoint.resource["name"], _EMPTY)

    # --- deployment

    def deploy(self, identity: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Start a container; once it is ready it gets calls by the split, or those of the model that it replaces."""
        document = dict(request.get("deployedModel", {}))
        with self._changed:
            endpoint = self._endpoint(identity)
            model = self.model(document.get("model", ""))
            own = document.get("id") or self._number()
            previous = document.get("rolloutOptions", {}).get("previousDeployedModel", "")
            if own in endpoint.deployed:
                raise GoogleError(409, f"{own} is deployed already", Status.ALREADY_EXISTS)
            if previous and previous not in endpoint.deployed:
                raise invalid(f"{previous} is not deployed at {endpoint.resource['name']}, so nothing replaces it")
            split = request.get("trafficSplit", {})
            if split:
                _checked_split(split, {*endpoint.deployed, _THIS})
        deployment = _deployment(endpoint.resource, model, own)
        limits = online_limits(
            deployment.endpoint_type,
            _seconds(model.get("containerSpec", {}).get("deploymentTimeout")),
            _seconds(endpoint.resource.get("clientConnectionConfig", {}).get("inferenceTimeout")),
        )

        def run() -> dict[str, Any]:
            if not self._run(deployment, limits, model, document, split, previous):
                raise impossible(f"Model server never became ready: the container of {own} has failed its probes")
            return {"@type": f"{_TYPE}DeployModelResponse", "deployedModel": endpoint.deployed[own].resource}

        return self._begin(endpoint.resource["name"], run)

    def _run(
        self,
        deployment: Deployment,
        limits: VertexLimits,
        model: Mapping[str, Any],
        document: Mapping[str, Any],
        split: Mapping[str, int],
        previous: str = "",
    ) -> bool:
        """Deploy and return whether the container became ready. The model `previous` gives it its traffic and ends."""
        running = self._start(deployment, limits, model)
        if not running.wait_until_ready(self._stopped.is_set):
            running.stop()
            return False
        if running.endpoint.direct is not None:
            running.endpoint.direct.check_health()
        own = deployment.deployed_model_id
        resource = {
            "dedicatedResources": {"minReplicaCount": 1, "maxReplicaCount": 1},
            **document,
            "id": own,
            "model": deployment.model,
            "modelVersionId": deployment.model_version_id,
            "createTime": _CREATED,
        }
        with self._changed:
            found = self._endpoint(deployment.endpoint_id)
            found.deployed[own] = DeployedModel(resource, running.endpoint, running.stop)
            if previous:
                found.split[own] = found.split.pop(previous, 0)
            elif split:
                found.split = {own if each == _THIS else each: share for each, share in split.items()}
        if previous:
            self._drain(found, previous)
        return True

    def undeploy(self, identity: str, request: Mapping[str, Any]) -> dict[str, Any]:
        own = request.get("deployedModelId", "")
        with self._changed:
            endpoint = self._endpoint(identity)
            if own not in endpoint.deployed:
                raise GoogleError(404, f"{own} is not deployed at {endpoint.resource['name']}")
            left = set(endpoint.deployed) - {own}
            split = {each: share for each, share in (request.get("trafficSplit") or endpoint.split).items() if share}
            if left and own in split:
                raise impossible(f"{own} has traffic: move its share to another deployed model first")
            endpoint.split = _checked_split(split, left) if left else {}

        def run() -> dict[str, Any]:
            self._drain(endpoint, own)
            return {"@type": f"{_TYPE}UndeployModelResponse"}

        return self._begin(endpoint.resource["name"], run)

    def _drain(self, endpoint: _Endpoint, own: str) -> None:
        """Wait until the calls that a deployed model has are answered, and stop it."""
        with self._changed:
            found = endpoint.deployed[own]
            self._changed.wait_for(lambda: not found.calls, found.endpoint.limits.inference_s)
            del endpoint.deployed[own]
        found.stop()

    def _start_for_job(self, reference: str, limits: VertexLimits) -> tuple[RunningContainer, Callable[[], bool]]:
        """The container of a batch prediction job, and whether the emulator ends."""
        model = self.model(reference)
        resource = {"name": model["name"].replace("/models/", "/endpoints/")}
        return self._start(_deployment(resource, model, self._number()), limits, model), self._stopped.is_set

    # --- operations

    def operation(self, name: str) -> dict[str, Any]:
        """The operation of a name, or of what follows the location in it. Raises GoogleError."""
        number = _last(name)
        with self._changed:
            if number not in self._operations:
                raise GoogleError(404, f"the operation {name} is not found")
            return self._operations[number]

    def _done(self, of: str, response: dict[str, Any]) -> dict[str, Any]:
        return self._begin(of, lambda: response, is_short=True)

    def _begin(self, of: str, run: Callable[[], dict[str, Any]], *, is_short: bool = False) -> dict[str, Any]:
        """An operation on the resource `of`, which is done at the end of `run`."""
        number = self._number()
        name = f"{of}/operations/{number}"

        def until_done() -> None:
            try:
                end: dict[str, Any] = {"response": run()}
            except (GoogleError, ConfigInvalid) as error:
                code = error.status if isinstance(error, GoogleError) else Status.FAILED_PRECONDITION
                end = {"error": {"code": code.value, "message": error.message}}
            with self._changed:
                self._operations[number] = {"name": name, "done": True, **end}

        with self._changed:
            self._operations[number] = {"name": name, "done": False}
        if is_short:
            until_done()
        else:
            self._pool.submit(until_done)
        return self.operation(name)

    def _number(self) -> str:
        return str(next(self._numbers))


def _name(location: str, kind: str, identity: str) -> str:
    return f"projects/{PROJECT_NUMBER}/locations/{location}/{kind}/{identity}"


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _dated(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    return {**document, "name": name, "createTime": _CREATED, "updateTime": _CREATED}


def _seconds(duration: str | None) -> float | None:
    """A protobuf duration such as `300s`."""
    return float(duration.removesuffix("s")) if duration else None


def _checked_split(split: Mapping[str, int], deployed: set[str]) -> dict[str, int]:
    """The split, which may be empty for no traffic. Raises GoogleError."""
    if unknown := set(split) - deployed:
        raise invalid(f"the traffic split names {sorted(unknown)[0]}, which is not deployed")
    if split and (sum(split.values()) != _ALL or min(split.values()) < 0):
        raise invalid(f"the shares of the traffic split add up to {sum(split.values())}, not {_ALL}")
    return dict(split)


def _deployment(endpoint: Mapping[str, Any], model: Mapping[str, Any], deployed_model_id: str) -> Deployment:
    spec = model.get("containerSpec", {})
    is_private = endpoint.get("privateServiceConnectConfig", {}).get("enablePrivateServiceConnect")
    is_large = endpoint.get("dedicatedEndpointEnabled") or is_private
    grpc_ports = spec.get("grpcPorts") or [{}]
    return Deployment(
        location=endpoint["name"].split("/")[3],
        endpoint_id=_last(endpoint["name"]),
        deployed_model_id=deployed_model_id,
        model_id=_last(model["name"]),
        model_version_id=model["versionId"],
        display_name=model.get("displayName", ""),
        endpoint_type=EndpointType.DEDICATED if is_large else EndpointType.SHARED,
        is_invoked=bool(spec.get("invokeRoutePrefix")),
        predict_route=spec.get("predictRoute", ""),
        health_route=spec.get("healthRoute", ""),
        grpc_port=grpc_ports[0].get("containerPort", 0),
    )
