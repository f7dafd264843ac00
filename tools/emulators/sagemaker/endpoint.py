"""Endpoints: they forward invocations to the container's routes and turn its answers into the API's.

Source: docs/spec/sagemaker.md section A5.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NoReturn, Protocol
from urllib.parse import quote

import orjson

from trident.tools.emulators.container import (
    BreachReport,
    ClientClosed,
    ContainerAnswer,
    ContainerClient,
    ContainerFault,
    ContainerStream,
)
from trident.tools.emulators.sagemaker.archives import ModelArchives, name_of
from trident.tools.emulators.sagemaker.invocation import (
    ApiError,
    BidirectionalStream,
    Invocation,
    endpoint_deleted,
    model_error,
    model_not_ready,
    validation_error,
)

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SageMakerLimits:
    """Times in seconds, sizes in bytes. Tests make them shorter."""

    connect_s: float = 0.25
    """Until the container accepts a connection."""
    ping_s: float = 2.0
    scrape_s: float = 10.0
    """The metrics page, if the platform scrapes it."""
    startup_s: float = 480.0
    """From the start until /ping answers 200."""
    probe_interval_s: float = 5.0
    """Between two probes of a container that serves."""
    invoke_s: float = 60.0
    stream_s: float = 480.0
    bidirectional_s: float = 1800.0
    load_s: float = 360.0
    """A load. A caller that waits for the model gets an error after `invoke_s`."""
    serverless_idle_s: float = 300.0
    """Without a call, after which a serverless endpoint has no container. The platform's is not documented."""
    stop_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    body_bytes: int = 25 * _MIB
    """The body of a request, and of an answer that is not streamed."""
    archive_bytes: int = 64 << 30
    """The unpacked size of an archive; less if the disk has less space."""


_PAGES_AT_MOST = 1000
_OK = 200


def read_model_list(client: ContainerClient, within_s: float) -> dict[str, str]:
    """The urls of the models by name. Raises ContainerFault for an answer that is not such a list."""
    found: dict[str, str] = {}
    token = ""
    for _ in range(_PAGES_AT_MOST):
        query = f"?next_page_token={quote(token, safe='')}" if token else ""
        answer = client.ask("GET", f"/models{query}", within_s=within_s)
        if answer.status != _OK:
            raise ContainerFault(f"answered {answer.status}")
        try:
            document: Any = orjson.loads(answer.body)
            models = {model["modelName"]: model["modelUrl"] for model in document["models"]}
            token = document.get("nextPageToken") or ""
            if not all(isinstance(text, str) for text in (*models, *models.values(), token)):
                raise TypeError
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise ContainerFault("answered with something that is not a list of models") from None
        found |= models
        if not token:
            return found
    raise ContainerFault(f"has more than {_PAGES_AT_MOST} pages of models, or sends one over and over")


# The models of a multi-model endpoint:
#
#         (absent) -> LOADING -> LOADED -> LEAVING -> (absent)
#                             \-> (absent) (the load failed)

NO_MEMORY = 507
_LOADED_ALREADY = 409


class _State(Enum):
    LOADING = auto()
    WAITING = auto()  # the container had no memory for the load; it waits until another model is evicted
    LOADED = auto()
    LEAVING = auto()


@dataclass(slots=True, eq=False)
class _Model:
    key: str
    state: _State = _State.LOADING
    users: int = 0
    last_use: int = 0
    failure: ApiError | None = None


class EndpointModels:
    """Loads, uses and evicts models. Any thread. Loads run on their own threads, because callers may stop waiting."""

    def __init__(
        self, client: ContainerClient, archives: ModelArchives, limits: SageMakerLimits, report: BreachReport
    ) -> None:
        self._client = client
        self._archives = archives
        self._limits = limits
        self._report = report
        self._changed = threading.Condition()
        self._models: dict[str, _Model] = {}
        self._uses = itertools.count(1)
        self.evictions = 0

    @contextmanager
    def use(self, key: str) -> Iterator[str]:
        """Load the model of `key` if necessary, keep it loaded inside the context, and give its name.

        Raises ApiError if there is no such archive, it cannot be loaded, or the load takes longer than a call may.
        """
        with self._changed:
            self._changed.wait_for(lambda: key not in self._models or self._models[key].state is not _State.LEAVING)
            model = self._models.get(key)
            if model is None:
                model = self._models[key] = _Model(key)
                threading.Thread(target=self._load, args=[model], name=f"load {name_of(key)}", daemon=True).start()
            model.users += 1
            model.last_use = next(self._uses)
        try:
            with self._changed:
                is_settled = self._changed.wait_for(
                    lambda: model.failure is not None or model.state is _State.LOADED, self._limits.invoke_s
                )
            if not is_settled:
                raise model_not_ready("Model is not ready for inference: it is still being loaded. Try again later")
            if model.failure is not None:
                raise model.failure
            yield name_of(key)
        finally:
            with self._changed:
                model.users -= 1
                self._changed.notify_all()

    def loaded(self) -> dict[str, str]:
        """The urls by name of the models that are loaded and not being evicted."""
        with self._changed:
            keys = [key for key, model in self._models.items() if model.state is _State.LOADED]
        return {name_of(key): self._archives.url(key) for key in keys}

    def evict_for(self, key: str, wait_s: float = 0.0) -> bool:
        """Unload the least recently used model other than `key`; False if there is none. Blocks.

        Waits up to `wait_s` for models that are in use or being loaded. A caller that uses a model itself must not
        wait, because two such callers would wait for each other.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._idle(key) or not self._others(key), wait_s)
            idle = self._idle(key)
            if not idle:
                return False
            victim = min(idle, key=lambda model: model.last_use)
            victim.state = _State.LEAVING
        path = f"/models/{name_of(victim.key)}"
        try:
            with self._report.faults(f"DELETE {path}"):
                answer = self._client.ask("DELETE", path, within_s=self._limits.load_s)
                if answer.status != _OK:
                    raise ContainerFault(f"answered {answer.status} for a model that is loaded")
            self._archives.remove(victim.key)
            self.evictions += 1
        finally:
            with self._changed:
                del self._models[victim.key]
                self._changed.notify_all()
        return True

    def _load(self, model: _Model) -> None:
        failure: ApiError | None = model_error(0, "the load did not end")
        try:
            failure = self._load_failure(model)
        finally:
            with self._changed:
                model.failure = failure
                if failure is None:
                    model.state = _State.LOADED
                else:
                    del self._models[model.key]
                self._changed.notify_all()

    def _load_failure(self, model: _Model) -> ApiError | None:
        """Load the model, after as many evictions as the container asks for."""
        headers = {"Content-Type": "application/json"}
        try:
            url = self._archives.put(model.key)
            body = orjson.dumps({"model_name": name_of(model.key), "url": url})
            while True:
                answer = self._client.ask("POST", "/models", headers=headers, body=body, within_s=self._limits.load_s)
                if answer.status != NO_MEMORY:
                    break
                self._move(model, _State.WAITING)
                if not self.evict_for(model.key, self._limits.load_s):
                    break
                self._move(model, _State.LOADING)
        except ApiError as error:
            return error
        except ClientClosed:
            return endpoint_deleted()
        except ContainerFault as fault:
            if self._client.is_closed:  # a load need not succeed after the container was told to end
                return endpoint_deleted()
            self._report.add(f"POST /models: the container {fault}")
            answer = ContainerAnswer(0, [], str(fault).encode())
        if answer.status in (_OK, _LOADED_ALREADY):
            return None
        self._archives.remove(model.key)
        return model_error(answer.status, answer.text)

    def _move(self, model: _Model, state: _State) -> None:
        with self._changed:
            model.state = state
            self._changed.notify_all()

    def _others(self, key: str) -> list[_Model]:
        """The models other than `key` that become idle or are evicted without its help."""
        return [model for model in self._models.values() if model.key != key and model.state is not _State.WAITING]

    def _idle(self, key: str) -> list[_Model]:
        return [model for model in self._others(key) if model.state is _State.LOADED and not model.users]


class Endpoint(Protocol):
    """Forwards invocations. Any thread."""

    def invoke(self, invocation: Invocation) -> ContainerAnswer:
        """The container's answer with status 200. Raises ApiError for another answer and for none."""

    @contextmanager
    def stream(self, invocation: Invocation) -> Iterator[ContainerStream]:
        """The same answer as a stream. Reading it raises ContainerFault."""

    def bidirectional(self, headers: Mapping[str, str]) -> BidirectionalStream:
        """A stream in both directions. Raises ApiError on an endpoint that has none."""
        ...


@dataclass(frozen=True, eq=False)
class SingleModelEndpoint:
    client: ContainerClient
    limits: SageMakerLimits
    report: BreachReport

    def invoke(self, invocation: Invocation) -> ContainerAnswer:
        _refuse_target(invocation)
        return _successful(_ask(self.client, invocation.path, invocation, self.limits, self.report))

    @contextmanager
    def stream(self, invocation: Invocation) -> Iterator[ContainerStream]:
        _refuse_target(invocation)
        path, headers, body = invocation.path, invocation.headers, invocation.body
        with ExitStack() as stack:
            try:
                opened = self.client.open("POST", path, headers=headers, body=body, within_s=self.limits.stream_s)
                stream = stack.enter_context(opened)
                if stream.status != _OK:
                    answer = stream.whole(self.limits.body_bytes)
                    raise model_error(answer.status, answer.text)
            except ContainerFault as fault:
                raise _no_answer(f"POST {path}", fault, self.report) from fault
            yield stream

    def bidirectional(self, headers: Mapping[str, str]) -> BidirectionalStream:
        if self.client.is_closed:
            raise ClientClosed
        return BidirectionalStream(self.client.port, headers, self.limits.connect_s, self.limits.bidirectional_s)


@dataclass(frozen=True, eq=False)
class MultiModelEndpoint:
    """Loads the model that an invocation names first if necessary."""

    client: ContainerClient
    models: EndpointModels
    limits: SageMakerLimits
    report: BreachReport

    def invoke(self, invocation: Invocation) -> ContainerAnswer:
        key = invocation.target_model
        if not key:
            raise validation_error(
                "Invocation of a multi-model endpoint without the header X-Amzn-SageMaker-Target-Model"
            )
        with self.models.use(key) as name:
            while True:
                path = f"/models/{name}/invoke"
                answer = _ask(self.client, path, invocation, self.limits, self.report)
                if answer.status != NO_MEMORY or not self.models.evict_for(key):
                    break
        if answer.status == 404:
            self.report.add(f"POST {path}: the container answered 404 for a model that is loaded")
        return _successful(answer)

    def stream(self, invocation: Invocation) -> NoReturn:
        raise validation_error("A multi-model endpoint has no response stream")

    def bidirectional(self, headers: Mapping[str, str]) -> NoReturn:
        raise validation_error("A multi-model endpoint has no bidirectional stream")


def _ask(
    client: ContainerClient, path: str, invocation: Invocation, limits: SageMakerLimits, report: BreachReport
) -> ContainerAnswer:
    try:
        within_s = invocation.within_s or limits.invoke_s
        return client.ask("POST", path, headers=invocation.headers, body=invocation.body, within_s=within_s)
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
