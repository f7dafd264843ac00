"""The backend `tensorrt`: plans on NVIDIA GPUs.

Source: docs/spec/framework-backends.md section 6.5.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from trident.core.backends.backend import BackendModel, CompletingBackend, LoadContext
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Runner
from trident.core.backends.model_files import content_hint, origin_of, start_of, weight_bytes
from trident.core.backends.tensorrt.engine import check_compatible, complete_config, describe, profile_indices
from trident.core.backends.tensorrt.engine_run import EngineRun, LoadedEngine, RunSettings
from trident.core.backends.tensorrt.package import (
    BackendSettings,
    EngineError,
    TensorRtPackage,
    device_support,
    error_of,
    import_package,
    is_poison,
    load_failure_of,
)
from trident.core.config.placement import DeviceKind, Placement, placements
from trident.core.config.problem import ModelSignature, is_plain
from trident.core.config.schema import ModelConfig
from trident.core.cuda import CudaDriver, CudaError, compute_capability
from trident.core.errors import ConfigInvalid, ModelLoadFailed, NotInstalled, RepositoryUnavailable

__all__ = ["TensorRtBackend", "device_support", "make_backend"]

_FAILURES = Failures((CudaError, EngineError, RuntimeError), error_of, is_poison)

DEFAULT_FILE = "model.plan"
# What people call plans.
_ENDINGS = (".plan", ".engine", ".trt")
_ONNX = b"\x08"
_METADATA_AT_MOST = 1 << 20


def make_backend(settings: Mapping[str, str]) -> CompletingBackend:
    """The backend with the values of --backend-config for it. Imports no TensorRT yet."""
    return TensorRtBackend(BackendSettings.read(settings))


class TensorRtBackend:
    """Implements Backend. Loader threads, several at once. Make it after the fork.

    What can be said without TensorRT and without a GPU is said first: the file is missing, is no plan, was built by
    which version. `open_driver`, `import_package` and `capability_of` are given by tests.
    """

    supports_gpus = True

    def __init__(
        self,
        settings: BackendSettings,
        *,
        open_driver: Callable[[], CudaDriver | None] = CudaDriver.open,
        import_package: Callable[[BackendSettings], TensorRtPackage] = import_package,
        capability_of: Callable[[int], str] = compute_capability,
    ) -> None:
        self._settings = settings
        self._open_driver = open_driver
        self._import = import_package
        self._capability_of = capability_of
        self._opening = threading.Lock()
        self._opened_package: TensorRtPackage | None = None
        self._opened_driver: CudaDriver | None = None

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        """None: `complete` does it all, because the profiles are needed as well."""
        return None

    def complete(self, path: Path, config: ModelConfig) -> None:
        """Fill `config` from the plan in the version directory `path`."""
        device_id = _first_gpu(config)
        plan = self._plan(path, config, device_id)
        self._package(plan)
        self.check(config)
        # The engine is dropped again: only what it says is needed.
        complete_config(config, self._deserialize(plan, config, device_id).description)

    def check(self, config: ModelConfig) -> None:
        """Raise ConfigInvalid for instances on a CPU or a DLA core, and for parameters without a meaning."""
        for placement in placements(config):
            if placement.kind is not DeviceKind.GPU:
                raise ConfigInvalid(
                    f"unable to load model '{config.name}', TensorRT backend supports only GPU device",
                    hint="use kind KIND_GPU where the server sees a GPU; on a CPU serve the model as ONNX",
                    field="instance_group",
                )
        for group in config.instance_group:
            if group.secondary_devices:
                device = group.secondary_devices[0].device_id
                raise ConfigInvalid(
                    f"unable to create TensorRT runtime with DLA Core ID: {device}, available number of DLA cores: 0",
                    hint="DLA cores are not used by this server: remove secondary_devices",
                    field="instance_group",
                )
        RunSettings.read(config)

    def weight_bytes(self, path: Path, config: ModelConfig) -> int:
        """The bytes of the plan."""
        return weight_bytes(path, config, DEFAULT_FILE)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version: an engine for each device. Raises a ServerError."""
        config = context.config
        package = self._package(self._plan(context.path, config, _first_gpu(config)))
        self.check(config)
        driver = self._driver()

        def load(placement: Placement) -> LoadedEngine:
            plan = self._plan(context.path, config, placement.device_id)
            loaded = self._deserialize(plan, config, placement.device_id)
            check_compatible(config, loaded.description)
            return loaded

        def runner(loaded: LoadedEngine, placement: Placement) -> Runner:
            """An instance has its own stream, contexts and memory."""
            try:
                run = EngineRun(
                    loaded,
                    driver,
                    placement.device_id,
                    profile_indices(config, placement.profiles, loaded.description.profiles),
                    RunSettings.read(config),
                    instance=placement.name,
                    batching=config.max_batch_size > 0,
                )
            except (CudaError, EngineError) as exc:
                raise load_failure_of(
                    exc, "unable to create TensorRT context", config.name, placement.device_id
                ) from exc
            return Runner(run=run, run_bound=run.bound, on_buffer=run.pinned.replace, close=run.close)

        def provider(loaded: LoadedEngine) -> str:
            return f"TensorRT {package.version}"

        return InProcessModel(
            context, Framework(load=load, runner=runner, failures=_FAILURES, provider=provider, threads="none")
        )

    def _plan(self, version: Path, config: ModelConfig, device_id: int) -> Path:
        """The plan for a GPU, which begins as one. Raises RepositoryUnavailable or ModelLoadFailed."""
        capability = self._capability_of(device_id) if config.cc_model_filenames else ""
        path = plan_path(version, config, capability)
        if problem := plan_problem(path):
            raise ModelLoadFailed(
                f"unable to load plan file to auto complete config: {path}", hint=problem, model=config.name
            )
        return path

    def _deserialize(self, plan: Path, config: ModelConfig, device_id: int) -> LoadedEngine:
        package, driver = self._package(plan), self._driver()
        try:
            with driver.on(device_id):
                runtime = package.runtime()
                engine = package.deserialize(runtime, plan, config.name)
                return LoadedEngine(package, runtime, engine, describe(engine))
        except CudaError as exc:
            raise load_failure_of(exc, "unable to create TensorRT engine", config.name, device_id) from exc

    def _package(self, plan: Path) -> TensorRtPackage:
        """TensorRT, imported when the first plan is read. Raises NotInstalled, which says what built `plan`."""
        with self._opening:
            if self._opened_package is None:
                try:
                    self._opened_package = self._import(self._settings)
                except NotInstalled as error:
                    error.hint = f"{error.hint}; the plan was built by {origin_of(plan)}"
                    raise
            return self._opened_package

    def _driver(self) -> CudaDriver:
        """The driver, opened when the first plan is loaded: never before a fork. Raises ModelLoadFailed."""
        with self._opening:
            if self._opened_driver is None:
                self._opened_driver = self._open_driver()
            if self._opened_driver is None:
                raise ModelLoadFailed(
                    "unable to create TensorRT runtime: there is no GPU",
                    hint="this machine has no NVIDIA driver, or no GPU that the server may use",
                )
            return self._opened_driver


def _first_gpu(config: ModelConfig) -> int:
    return next((placement.device_id for placement in placements(config)), 0)


def plan_path(version: Path, config: ModelConfig, capability: str = "") -> Path:
    """The plan in the directory of a version, for a GPU of compute `capability` (`9.0`).

    Raises RepositoryUnavailable with Triton's text.
    """
    name = config.cc_model_filenames.get(capability, "") or config.default_model_filename or DEFAULT_FILE
    path = version / name
    if is_plain(name) and path.is_file():
        return path
    raise RepositoryUnavailable(
        f"unable to find '{path}' for model instance '{config.name}'", hint=_missing_hint(version, name)
    )


def _missing_hint(version: Path, wanted: str) -> str:
    try:
        others = sorted(name for name in os.listdir(version) if name.endswith(_ENDINGS) and name != wanted)
    except OSError:
        others = []
    if not others:
        return "put the plan there, or name its file in default_model_filename, or by GPU in cc_model_filenames"
    return f"the version directory has '{others[0]}': rename it, or set default_model_filename: \"{others[0]}\""


def plan_problem(path: Path) -> str | None:
    """Why the file cannot be a plan, with the cure; None if it may be one. Reads its beginning only."""
    if hint := content_hint(path):
        return hint
    origin = origin_of(path) or ""
    if origin.startswith("TensorRT"):
        return None
    if _starts_with_metadata(path):
        return (
            "the file has a text about the model before the plan, as exports of Ultralytics do: remove it, which is "
            "4 bytes with its length and the text itself"
        )
    start = start_of(path, 1)
    if origin:
        return f"the file was written by {origin}, and is no plan: build one with trtexec --saveEngine=model.plan"
    if path.suffix == ".onnx" or start == _ONNX:
        return "the file may be an ONNX model: build a plan with trtexec --onnx=FILE --saveEngine=model.plan"
    return "the file does not begin as plans of TensorRT 8 and later do: copy it again, or build it again"


def _starts_with_metadata(path: Path) -> bool:
    start = start_of(path, 5)
    if start is None or len(start) < 5 or start[4:] != b"{":
        return False
    return 0 < int.from_bytes(start[:4], "little") < _METADATA_AT_MOST
