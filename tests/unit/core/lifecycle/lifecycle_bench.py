"""An engine over model repositories for tests of the lifecycle: real threads and folders, a backend that can be held.

A model of the `fake` backend is a text file with a number, its weight: that is what it answers to every request.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.threads import server_threads
from tests.unit.core.scheduling.scheduler_bench import Outcomes, StubInstance
from tests.waiting import until
from trident.core.backends.backend import Backend, LoadContext, OnChange
from trident.core.backends.registry import BackendRegistry, installed_backends
from trident.core.config.placement import Placement
from trident.core.config.problem import ModelSignature
from trident.core.config.schema import ModelConfig
from trident.core.engine.bls import EngineBlsClient
from trident.core.engine.in_process import InferenceEngine
from trident.core.engine.protocol import ServedModel
from trident.core.errors import BackendFailed
from trident.core.http.admin import repository_index_json
from trident.core.inference.pending_request import PendingRequest, ResponseSender
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.lifecycle.lifecycle import Lifecycle
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.memory import MemoryLedger
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.version import EngineParts, ModelVersion
from trident.core.observability.hardware import HardwareGauges
from trident.core.observability.metrics.custom_metrics import CustomMetrics
from trident.core.observability.statistics import ModelProcessMetrics
from trident.core.repository.opener import SourceOpener, SourceOptions
from trident.core.repository.sources import LocalSource, Source

LIMIT_S = 60.0
"""How long a test waits for an event before it fails."""

CONFIG = """
backend: "fake"
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
"""
MORE_INSTANCES = CONFIG + "instance_group [ { count: 3 kind: KIND_CPU } ]"
BROKEN = "broken"
"""The content of a model file that cannot be loaded."""


class FakeInstance(StubInstance):
    def __init__(self, placement: Placement, model: FakeModel) -> None:
        self.placement = placement
        self.is_closed = False
        self._model = model

    def outcomes(self, requests: Sequence[InferenceRequest], senders: Sequence[ResponseSender]) -> Outcomes:
        self._model.begun.release()
        assert self._model.gate.wait(LIMIT_S)
        self._model.while_executing()
        output = OutputTensor("OUTPUT0", "INT32", (1,), np.array([self._model.weight], np.int32))
        return [[output] for _ in requests]

    def close(self) -> None:
        self.is_closed = True


class FakeModel:
    """While `gate` is clear, executions begin but do not end. Then they call `while_executing`.

    It makes at most `limit` instances.
    """

    def __init__(self, weight: int) -> None:
        self.while_executing: Callable[[], object] = lambda: None
        self.instances: list[FakeInstance] = []
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.is_closed = False
        self.limit = 100
        self.weight = weight
        self.labels: dict[str, tuple[str, ...]] = {}

    trouble = ""

    def watch(self, on_change: OnChange) -> None:
        self.on_change = on_change

    def describe(self) -> dict[str, str]:
        return {"device": "cpu", "execution provider": "none"}

    def check_ready(self) -> None: ...

    def processes(self) -> list[ModelProcessMetrics]:
        return []

    def instance(self, placement: Placement) -> FakeInstance:
        if len(self.instances) == self.limit:
            raise BackendFailed("no memory")
        self.instances.append(FakeInstance(placement, self))
        return self.instances[-1]

    def retain(self, devices: Iterable[str]) -> None: ...

    def close(self) -> None:
        assert all(instance.is_closed for instance in self.instances)
        self.is_closed = True


class FakeBackend:
    """`loads` lists the loads that began, as `model:version=content`; `models` those that succeeded."""

    supports_gpus = False

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.models: list[FakeModel] = []
        self._gates: dict[str, threading.Event] = {}

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
        raise AssertionError("its configurations are complete")

    def check(self, config: ModelConfig) -> None: ...

    def load(self, context: LoadContext) -> FakeModel:
        content = (context.path / "model.fake").read_text()
        name = context.spec.name
        self.loads.append(f"{name}:{context.spec.version}={content}")
        for held in (name, f"{name}={content}"):
            if held in self._gates:
                assert self._gates[held].wait(LIMIT_S)
        if content == BROKEN:
            raise BackendFailed("the weights are broken")
        self.models.append(FakeModel(int(content)))
        return self.models[-1]

    @contextmanager
    def holding(self, name: str) -> Iterator[None]:
        """Loads of model `name`, or of one content as `name=content`, begin but do not end."""
        gate = self._gates[name] = threading.Event()
        try:
            yield
        finally:
            del self._gates[name]
            gate.set()


def registry_of(backend: Backend, **settings: Mapping[str, str]) -> BackendRegistry:
    """The backends of this installation, and `backend` as `fake`."""
    return BackendRegistry(settings, makers={**installed_backends(), "fake": lambda settings: backend})


OpenSource = Callable[[str], Source]


def open_folder(text: str) -> Source:
    return LocalSource(Path(text))


class Bench:
    def __init__(
        self,
        repositories: Sequence[Path],
        open_source: OpenSource,
        memory: MemoryLedger | None = None,
        **options: object,
    ) -> None:
        self.options = EngineOptions(repositories=tuple(map(str, repositories)), **options)  # type: ignore[arg-type]
        self.backend = FakeBackend()
        self.metrics = CustomMetrics()
        parts = EngineParts(metrics=self.metrics, memory=memory or MemoryLedger(lambda devices: {}, {}))
        loader = ModelLoader(self.options, registry_of(self.backend), parts)
        self.lifecycle = Lifecycle(self.options, loader, open_source)
        self.bls = loader.models = EngineBlsClient(self.lifecycle)
        hardware = HardwareGauges(interval_ms=1000)
        clouds = SourceOpener(SourceOptions(cache_directory=Path("unused"), cache_bytes=0))
        self.engine = InferenceEngine(self.options, self.lifecycle, hardware, clouds, parts)

    def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load as a client does, perhaps with a configuration as JSON and with files."""
        parameters: dict[str, str | bytes] = {f"file:{path}": content for path, content in (files or {}).items()}
        if config is not None:
            parameters["config"] = config
        self.engine.load_model(name, parameters)

    def poll(self) -> None:
        """Poll the repositories as poll mode does, and wait until the loads are done."""
        self.lifecycle.poll()
        assert self.lifecycle._threads.wait_idle(LIMIT_S)

    def index(self) -> list[str]:
        """The repository index, a line for each entry."""
        index = repository_index_json(self.engine.repository_index(ready_only=False))
        return [" ".join(entry.values()) for entry in index]

    def until_index(self, *lines: str) -> None:
        until(lambda: self.index() == list(lines))

    def version(self, name: str) -> ModelVersion:
        return self.lifecycle.models.find(name, -1)

    def submit(self, name: str, tensor: InputTensor | None = None) -> queue.SimpleQueue[InferenceResponse]:
        return self.submit_to(self.engine.model(name), name, tensor)

    def submit_to(
        self, model: ServedModel, name: str, tensor: InputTensor | None = None
    ) -> queue.SimpleQueue[InferenceResponse]:
        tensor = tensor or InputTensor("INPUT0", "INT32", (1,), np.zeros(1, np.int32))
        request = InferenceRequest(name, [tensor])
        responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
        model.submit(PendingRequest(request, responses.put))
        return responses

    def ask(self, name: str, tensor: InputTensor | None = None) -> int:
        """The weight that answers. Raises the error of the response."""
        return weight_of(self.submit(name, tensor))

    @contextmanager
    def running(self, name: str) -> Iterator[queue.SimpleQueue[InferenceResponse]]:
        """A request is being executed, on the model that was loaded last, until the end."""
        model = self.backend.models[-1]
        model.gate.clear()
        responses = self.submit(name)
        try:
            assert model.begun.acquire(timeout=LIMIT_S)
            yield responses
        finally:
            model.gate.set()


def weight_of(responses: queue.SimpleQueue[InferenceResponse]) -> int:
    response = responses.get(timeout=LIMIT_S)
    if response.error is not None:
        raise response.error
    return int(response.outputs[0].array[0])


@contextmanager
def living(*repositories: Path, **options: Any) -> Iterator[Bench]:
    """A started server; at the end it is finished, no thread is left and every model is closed."""
    with unstarted(*repositories, **options) as bench:
        bench.engine.start()
        assert bench.engine.wait_loaded(LIMIT_S)
        yield bench


@contextmanager
def unstarted(
    *repositories: Path,
    open_source: OpenSource = open_folder,
    memory: MemoryLedger | None = None,
    **options: object,
) -> Iterator[Bench]:
    """The same, which the test starts."""
    bench = Bench(repositories, open_source, memory, **options)
    try:
        yield bench
    finally:
        bench.engine.begin_exit()
        assert bench.engine.finish(LIMIT_S)
    until(lambda: server_threads() == [], lambda: str(server_threads()))
    assert all(model.is_closed for model in bench.backend.models)


def put(path: Path, content: str | bytes) -> None:
    """Write a file, with a new inode if it exists, so that every change is noticed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.replace(path)


def write(repository: Path, name: str, *weights: int | str, config: str = CONFIG) -> Path:
    """A model of the fake backend with versions 1, 2, … of these weights. Returns its folder."""
    for number, weight in enumerate(weights, start=1):
        put(repository / name / str(number) / "model.fake", str(weight))
    put(repository / name / "config.pbtxt", config)
    return repository / name
