"""One loaded version of a Python model, and its instances."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from trident.core.backends.backend import BackendInstance, OnChange
from trident.core.backends.python.instance import PythonInstance
from trident.core.backends.python.process import LaunchPlan, ModelProcess
from trident.core.backends.python.watcher import FileWatcher
from trident.core.config.placement import Placement
from trident.core.errors import BackendFailed, ServerError
from trident.core.observability.metrics.snapshot import ModelProcessMetrics


class PythonModel:
    """Implements BackendModel. Loader threads, several at once."""

    labels: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def __init__(
        self,
        plan: LaunchPlan,
        placements: Sequence[Placement],
        watcher: FileWatcher,
        *,
        threads: int,
    ) -> None:
        """Begins to start the instances of `placements`, all at once."""
        self._plan = plan
        self._watcher = watcher
        self._threads = threads
        self._lock = threading.Lock()
        self._instances: list[PythonInstance] = []
        self._on_change: OnChange | None = None
        self._starts = {placement: self._start(placement) for placement in placements}

    def describe(self) -> dict[str, str]:
        """`device`, where the model puts its own tensors, `execution provider`, which is the interpreter, `threads`."""
        devices = {instance.placement.device: None for instance in self._instances}
        return {
            "device": ", ".join(devices),
            "execution provider": self._plan.interpreter,
            "threads": str(self._threads) if self._threads else "",
        }

    def instance(self, placement: Placement) -> BackendInstance:
        """The instance, waited for until its model is initialized. Raises a ServerError."""
        with self._lock:
            start = self._starts.pop(placement, None)
        instance = (start or self._start(placement)).wait()
        with self._lock:
            self._instances = [*self._instances, instance]
        return instance

    def watch(self, on_change: OnChange) -> None:
        """On the thread that starts the process of an instance again."""
        self._on_change = on_change

    def _changed(self, instance: BackendInstance, serves: bool) -> None:
        on_change = self._on_change
        if on_change is not None:
            on_change(instance, serves)

    @property
    def trouble(self) -> str:
        """Why the first instance that does not serve does not; "" if all serve. Any thread."""
        return next((instance.trouble for instance in self._instances if instance.trouble), "")

    def check_ready(self) -> None:
        """Ask the model of each instance. Raises a ServerError; blocks for 5 s at most, each. Any thread."""
        for instance in self._instances:
            instance.check_ready()

    def processes(self) -> list[ModelProcessMetrics]:
        """Of each instance, in the order of the placements."""
        return [
            ModelProcessMetrics(
                instance=instance.placement.name,
                resident_bytes=instance.resident_bytes,
                restarts=instance.restarts,
                process_id=instance.process_id,
            )
            for instance in self._instances
        ]

    def retain(self, devices: Iterable[str]) -> None:
        """Nothing is shared between the instances of a device: forget those that were closed."""
        with self._lock:
            self._instances = [instance for instance in self._instances if not instance.is_closed]

    def close(self) -> None:
        """Close instances that were started but never requested, and forget the others."""
        with self._lock:
            starts, self._starts = list(self._starts.values()), {}
            # No cycle: instances tell the model of changes, and the model tells the scheduler, which has the instances.
            self._instances, self._on_change = [], None
        for start in starts:
            start.instance.close()

    def _start(self, placement: Placement) -> _Start:
        def launch(on_gone: Callable[[], None]) -> ModelProcess:
            return ModelProcess(self._plan, placement, self._watcher, on_gone)

        plan = self._plan
        return _Start(
            PythonInstance(
                placement, plan.spec, launch, plan.limits.execution_s, plan.finalize_limit_s, on_change=self._changed
            )
        )


class _Start:
    """The start of an instance, on a thread of its own."""

    def __init__(self, instance: PythonInstance) -> None:
        self.instance = instance
        self._error: Exception | None = None
        self._own_thread = threading.Thread(
            target=self._run, name=f"trident-start-{instance.placement.name}", daemon=True
        )
        self._own_thread.start()

    def _run(self) -> None:
        try:
            self.instance.begin()
        except Exception as error:
            self._error = error

    def wait(self) -> PythonInstance:
        """Raises what the start raised."""
        self._own_thread.join()
        error, self._error = self._error, None
        if error is None:
            return self.instance
        self.instance.close()
        if isinstance(error, ServerError):
            raise error
        raise BackendFailed(f"the process of instance '{self.instance.placement.name}' failed: {error}") from error
