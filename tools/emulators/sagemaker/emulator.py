"""The emulator: gives containers their files, environment and port, probes them, forwards calls, and stops them.

How many containers, and which of the platform's limits they have, is in a settings file (`Hosting`).
Source: docs/spec/sagemaker.md sections A1 to A6.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from trident.adapters.sagemaker.platform import BIND_TO_PORT, MULTI_MODEL, as_integer
from trident.app.terminal import counted
from trident.core.errors import ConfigInvalid
from trident.core.repository.opener import SourceOpener
from trident.tools.emulators.container import (
    HOST,
    HTTP_ADDRESS,
    Container,
    ContainerClient,
    free_port,
    inherited_environment,
)
from trident.tools.emulators.emulator import PlatformEmulator, PlatformOptions
from trident.tools.emulators.sagemaker.api import InvocationQueue, RuntimeApi
from trident.tools.emulators.sagemaker.archives import (
    ArchiveStorage,
    CloudArchives,
    LocalArchives,
    ModelArchives,
    fetched_model,
    is_in_cloud,
    unpack,
)
from trident.tools.emulators.sagemaker.endpoint import EndpointModels, MultiModelEndpoint, SageMakerLimits
from trident.tools.emulators.sagemaker.fleet import Fleet, PingProbes, StartContainer
from trident.tools.emulators.sagemaker.hosting import Hosting
from trident.tools.emulators.sagemaker.transform import TransformJob, TransformOptions

_METRICS_LOG = "TRIDENT_METRICS_LOG"
# The only argument that the platform passes to the image's entry point.
_START = "serve"
_MODEL_ROOT = "TRIDENT_SAGEMAKER_MODEL_ROOT"
_MODELS_ROOT = "TRIDENT_SAGEMAKER_MODELS_ROOT"
_LAST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class EmulatorOptions(PlatformOptions):
    """`model` is a folder or a .tar.gz, or with `multi_model` a folder of such archives: a path or a cloud address.

    With `batch` a batch transform job runs instead of an endpoint.
    """

    multi_model: bool = False
    hosting: Hosting = field(default_factory=Hosting)
    batch: TransformOptions | None = None
    limits: SageMakerLimits = field(default_factory=SageMakerLimits)


class Emulator(PlatformEmulator[EmulatorOptions]):
    platform = "sagemaker"

    def __init__(self, options: EmulatorOptions, out: TextIO, err: TextIO | None = None) -> None:
        super().__init__(options, out, err)
        self._hosting = options.hosting
        self._limits = options.hosting.limits(options.limits)

    def _run_in(self, folder: Path, stopped: threading.Event) -> bool:
        """Returns False if an object of a batch transform job has no output."""
        self._hosting.check(multi_model=self._options.multi_model)
        if self._hosting.scraped[0] and self._variables.get(_METRICS_LOG) == "emf" and self._options.batch is None:
            self._say("the platform scrapes the metrics that the container's log has as well: both are paid for")
        folder = folder / "ml"
        archives: ModelArchives | None = None
        with contextlib.ExitStack() as held:
            if self._options.multi_model:
                archives = ModelArchives(self._storage(held, stopped), folder / "models", self._limits.archive_bytes)
                (folder / "models").mkdir(parents=True)
                self._run_multi_model(folder, archives, stopped)
                return True
            model_root = self._model_root(folder, held, stopped)

            def start(port: int) -> Container:
                return self._container(model_root, folder / "models", port)

            if self._options.batch is not None:
                return self._transform(self._options.batch, start, stopped)
            self._run_fleet(start, stopped)
        return True

    def _container(self, model_root: Path, models_root: Path, port: int) -> Container:
        return Container([*self._options.command, _START], self._environment(model_root, models_root, port))

    def _run_multi_model(self, folder: Path, archives: ModelArchives, stopped: threading.Event) -> None:
        port = self._port()
        client = ContainerClient(port, self._limits)
        models = EndpointModels(client, archives, self._limits, self.report)
        endpoint = MultiModelEndpoint(client, models, self._limits, self.report)
        api = RuntimeApi(endpoint, self._options.api_port, self._limits, self.report)
        with contextlib.closing(api), contextlib.closing(archives):
            container = self._container(folder / "model", folder / "models", port)
            with container.serving(client, self._limits.stop_s, self.report):
                probes = PingProbes(container, client, self._limits, self.report, models, self._hosting.scraped)
                if self._serve(api, probes, stopped, "the container is ready; the runtime API"):
                    calls, evicted = counted(api.calls, "invocation"), counted(models.evictions, "model")
                    self._say(f"{calls}, {evicted} evicted")

    def _run_fleet(self, start: StartContainer, stopped: threading.Event) -> None:
        hosting = self._hosting
        fleet = Fleet(start, hosting, self._limits, self.report, self._say, self._port())
        with contextlib.ExitStack() as held:
            queue = None
            if hosting.asynchronous:
                queue = InvocationQueue(hosting.asynchronous, fleet, self._limits, self.report)
            port = self._options.api_port
            api = RuntimeApi(fleet, port, self._limits, self.report, queue, fleet.operations())
            held.callback(api.close)
            held.callback(fleet.kill)
            if self._serve(api, fleet, stopped, "the container is ready; the runtime API"):
                self._say(counted(api.calls, "invocation"))
            fleet.close()
            if queue is not None:
                queue.close()

    def _transform(self, options: TransformOptions, start: StartContainer, stopped: threading.Event) -> bool:
        port = self._port()
        container, client = start(port), ContainerClient(port, self._limits)
        with container.serving(client, self._limits.stop_s, self.report):
            if not PingProbes(container, client, self._limits, self.report).wait_until_ready(stopped.is_set):
                container.kill()
                return False
            self._say("the container is ready; the job runs")
            return TransformJob(options, client, self.report, self._say).run(stopped.is_set)

    @property
    def _variables(self) -> dict[str, str]:
        return {**self._hosting.variables, **self._options.variables}

    def _model_root(self, folder: Path, held: contextlib.ExitStack, stopped: threading.Event) -> Path:
        """The folder of a single model, which `held` keeps. Raises Interrupted and ServerError."""
        model = Path(self._options.model).absolute()
        if is_in_cloud(self._options.model):
            model = held.enter_context(fetched_model(self._opener(held), self._options.model, stopped))
        if model.is_dir():
            if {each.name.endswith(".tar.gz") for each in model.iterdir()} == {True}:
                raise ConfigInvalid(f"{model} has archives, and no model", hint="--multi-model serves each of them")
            return model
        if not model.is_file():
            raise ConfigInvalid(f"there is no {model}", hint="name a folder, a .tar.gz archive, or its address")
        (folder / "model").mkdir(parents=True)
        unpack(model, folder / "model", self._limits.archive_bytes, is_stopped=stopped.is_set)
        return folder / "model"

    def _storage(self, held: contextlib.ExitStack, stopped: threading.Event) -> ArchiveStorage:
        """The archives of a multi-model endpoint. Raises Interrupted and ServerError."""
        if not is_in_cloud(self._options.model):
            return LocalArchives(Path(self._options.model).absolute())
        archives = CloudArchives(self._opener(held), self._options.model, stopped)
        self._say(f"{counted(archives.count, 'archive')} in {archives.location}")
        return archives

    def _opener(self, held: contextlib.ExitStack) -> SourceOpener:
        opener = self._options.cache.opener()
        held.callback(opener.stop)
        return opener

    def _port(self) -> int:
        given = self._variables.get(BIND_TO_PORT, "")
        return as_integer(BIND_TO_PORT, given, 1, _LAST_PORT) if given else free_port()

    def _environment(self, model_root: Path, models_root: Path, port: int) -> dict[str, str]:
        platform = {HTTP_ADDRESS: HOST, _MODEL_ROOT: str(model_root), _MODELS_ROOT: str(models_root)}
        if self._options.multi_model:
            platform[MULTI_MODEL] = "true"
        if self._options.batch is not None:
            platform |= self._options.batch.variables
        inherited = inherited_environment(self._options.environment)
        return {**inherited, **platform, **self._variables, BIND_TO_PORT: str(port)}
