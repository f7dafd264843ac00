"""One loaded version of a TensorRT model: an engine for each GPU, and the instances on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trident.core.backends.backend import BackendInstance, LoadContext
from trident.core.backends.in_process import Failures, make_instance
from trident.core.backends.in_process_model import InProcessModel
from trident.core.backends.tensorrt.engine import profile_indices
from trident.core.backends.tensorrt.engine_run import EngineRun, LoadedEngine
from trident.core.backends.tensorrt.package import EngineError, TensorRtPackage, error_of, failure_of, is_poison
from trident.core.backends.tensorrt.settings import RunSettings
from trident.core.config.placement import Placement
from trident.core.cuda.driver import CudaDriver, CudaError

_FAILURES = Failures((CudaError, EngineError, RuntimeError), error_of, is_poison)


class TensorRtModel(InProcessModel):
    """Implements BackendModel. Loader threads, several at once. `load` loads the engine for the GPU of a placement."""

    def __init__(
        self,
        context: LoadContext,
        package: TensorRtPackage,
        driver: CudaDriver,
        load: Callable[[Placement], LoadedEngine],
    ) -> None:
        self._driver = driver
        described = {"execution provider": f"TensorRT {package.version}", "threads": "none"}
        super().__init__(context, load, self._engine_run, _FAILURES, described)

    def instance(self, placement: Placement) -> BackendInstance:
        """An instance with its own stream, contexts and memory, on the engine of its GPU. Raises a ServerError."""
        run = self._engine_run(self._weights.of(placement), placement)
        return make_instance(
            placement,
            self._spec,
            self._config,
            run,
            self._failures,
            self._axes,
            on_buffer=run.pinned.replace,
            on_close=run.close,
            bound_run=run,
        )

    def _engine_run(self, loaded: Any, placement: Placement) -> EngineRun:
        config = self._config
        try:
            return EngineRun(
                loaded,
                self._driver,
                placement.device_id,
                profile_indices(config, placement.profiles, loaded.description.profiles),
                RunSettings.read(config),
                instance=placement.name,
                batching=config.max_batch_size > 0,
            )
        except (CudaError, EngineError) as exc:
            raise failure_of(exc, "unable to create TensorRT context", config.name) from exc
