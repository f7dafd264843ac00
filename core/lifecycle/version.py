"""One version of a model: its configuration, its state, and, while it is ready, what serves it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from core.backends.base import BackendInstance, BackendModel
from core.config.model_spec import ModelSpec
from core.config.request_validation import RequestValidator
from core.config.schema import ModelConfig
from core.errors import ModelNotReady, ServerError
from core.inference import InferenceRequest
from core.lifecycle.state import UNLOADED, ModelState, VersionState
from core.observability.statistics import ModelStatistics
from core.scheduling.scheduler import Scheduler


class ModelVersion:
    """Made when loading begins; `serve` makes it ready, `fail` says why it cannot be, `unload` ends it.

    `submit` may be called on any thread; the other methods on loader threads only. `config` and `spec` are there from
    `configure` on, which is before the version is ready.
    """

    config: ModelConfig
    spec: ModelSpec

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.state = VersionState(name, version)
        self.statistics = ModelStatistics()
        self.load_seconds = 0.0
        self.description: dict[str, str] = {}
        self.gpu_uuid: str | None = None
        self._validator: RequestValidator | None = None
        self._scheduler: Scheduler | None = None
        self._model: BackendModel | None = None
        self._instances: Sequence[BackendInstance] = ()
        self._started = time.monotonic()

    @property
    def is_ready(self) -> bool:
        return self.state.current is ModelState.READY

    @property
    def queued(self) -> int:
        """Requests that wait for an instance."""
        return self._scheduler.queued if self._scheduler is not None else 0

    @property
    def in_flight(self) -> int:
        """Requests that wait or run."""
        return self._scheduler.queued + self._scheduler.in_flight if self._scheduler is not None else 0

    def configure(self, config: ModelConfig, spec: ModelSpec) -> None:
        """The complete configuration, and what was resolved of it."""
        self.config = config
        self.spec = spec
        self._validator = RequestValidator(spec)

    def serve(self, model: BackendModel, instances: Sequence[BackendInstance], scheduler: Scheduler) -> None:
        """LOADING -> READY: from now on requests are taken."""
        self._model = model
        self._instances = instances
        self._scheduler = scheduler
        self.description = model.describe()
        self.load_seconds = time.monotonic() - self._started
        scheduler.start()
        self.state.move(ModelState.READY)

    def fail(self, error: ServerError) -> None:
        """LOADING -> UNAVAILABLE with the error as the reason."""
        self.load_seconds = time.monotonic() - self._started
        self.state.move(ModelState.UNAVAILABLE, error.reason)

    def check(self, request: InferenceRequest) -> None:
        """Validate `request` and make the arrays of its inputs. Raises InvalidRequest."""
        assert self._validator is not None
        self._validator.check(request)

    def submit(self, request: InferenceRequest) -> None:
        """Check and queue `request`. Raises a ServerError if it is refused."""
        scheduler = self._scheduler
        if scheduler is None:
            raise ModelNotReady(
                f"Request for unknown model: '{self.name}' version {self.version} is not at ready state"
            )
        self.check(request)
        request.start_ns = time.monotonic_ns()
        scheduler.submit(request)

    def stop(self) -> None:
        """Take no more requests; those taken are still served."""
        if self._scheduler is not None:
            self._scheduler.stop()

    def unload(self, timeout_s: float) -> bool:
        """READY -> UNAVAILABLE: drain, then free sessions and memory. False if requests were left after `timeout_s`."""
        if self.state.current is not ModelState.READY:
            return True
        self.state.move(ModelState.UNLOADING)
        drained = True
        if self._scheduler is not None:
            self._scheduler.stop()
            drained = self._scheduler.drain(timeout_s)
            self._scheduler.close()
        for instance in self._instances:
            instance.close()
        if self._model is not None:
            self._model.close()
        self._scheduler = None
        self._model = None
        self._instances = ()
        self.state.move(ModelState.UNAVAILABLE, UNLOADED)
        return drained
