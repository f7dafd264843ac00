"""The emulator: gives one container its files, environment and port, probes it, forwards calls to it, and stops it.

Source: docs/spec/sagemaker.md sections A1 to A5.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from trident.adapters.sagemaker.settings import BIND_TO_PORT, MULTI_MODEL, as_integer
from trident.app.emulators.container import (
    HOST,
    HTTP_ADDRESS,
    Container,
    ContainerClient,
    free_port,
    inherited_environment,
)
from trident.app.emulators.emulator import PlatformEmulator, PlatformOptions, counted
from trident.app.emulators.sagemaker.api import RuntimeApi
from trident.app.emulators.sagemaker.archives import (
    ArchiveStorage,
    CloudArchives,
    LocalArchives,
    ModelArchives,
    fetched_model,
    is_in_cloud,
    unpack,
)
from trident.app.emulators.sagemaker.endpoint import (
    Endpoint,
    EndpointModels,
    MultiModelEndpoint,
    PlatformLimits,
    SingleModelEndpoint,
)
from trident.app.emulators.sagemaker.probes import Probes
from trident.core.errors import ConfigInvalid
from trident.core.repository.sources import SourceOpener

# The only argument that the platform passes to the image's entry point.
_START = "serve"
_MODEL_ROOT = "TRIDENT_SAGEMAKER_MODEL_ROOT"
_MODELS_ROOT = "TRIDENT_SAGEMAKER_MODELS_ROOT"
_LAST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class EmulatorOptions(PlatformOptions):
    """`model` is a folder or a .tar.gz, or with `multi_model` a folder of such archives: a path or a cloud address."""

    multi_model: bool = False
    limits: PlatformLimits = field(default_factory=PlatformLimits)


class Emulator(PlatformEmulator):
    platform = "sagemaker"

    def __init__(self, options: EmulatorOptions, out: TextIO, err: TextIO | None = None) -> None:
        super().__init__(out, err)
        self._options = options
        self._limits = options.limits

    def _run_in(self, folder: Path, stopped: threading.Event) -> bool:
        folder = folder / "ml"
        archives: ModelArchives | None = None
        with contextlib.ExitStack() as held:
            if self._options.multi_model:
                archives = ModelArchives(self._storage(held, stopped), folder / "models", self._limits.archive_bytes)
                (folder / "models").mkdir(parents=True)
                model_root = folder / "model"
            else:
                model_root = self._model_root(folder, held, stopped)
            self._run_container(model_root, folder / "models", archives, stopped)
        return True

    def _run_container(
        self, model_root: Path, models_root: Path, archives: ModelArchives | None, stopped: threading.Event
    ) -> None:
        port = self._port()
        client = ContainerClient(port, self._limits)
        models = None if archives is None else EndpointModels(client, archives, self._limits, self.report)
        api = RuntimeApi(self._endpoint(client, models), self._options.api_port, self._limits, self.report)
        with contextlib.closing(api):
            container = Container([*self._options.command, _START], self._environment(model_root, models_root, port))
            try:
                probes = Probes(container, client, self._limits, self.report, models)
                if self._serve(api, probes, stopped, "the runtime API"):
                    self._say(_summary(api, models))
                client.close()  # first, because a container that was told to end need not answer new requests
                container.stop(self._limits.stop_s, self.report)
            finally:
                container.kill()
                if archives is not None:
                    archives.close()

    def _model_root(self, folder: Path, held: contextlib.ExitStack, stopped: threading.Event) -> Path:
        """The folder of a single model, which `held` keeps. Raises Interrupted and ServerError."""
        model = Path(self._options.model).absolute()
        if is_in_cloud(self._options.model):
            model = held.enter_context(fetched_model(self._opener(held), self._options.model, stopped))
        if model.is_dir():
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
        given = self._options.variables.get(BIND_TO_PORT, "")
        return as_integer(BIND_TO_PORT, given, 1, _LAST_PORT) if given else free_port()

    def _environment(self, model_root: Path, models_root: Path, port: int) -> dict[str, str]:
        platform = {
            HTTP_ADDRESS: HOST,
            _MODEL_ROOT: str(model_root),
            _MODELS_ROOT: str(models_root),
            BIND_TO_PORT: str(port),
        }
        if self._options.multi_model:
            platform[MULTI_MODEL] = "true"
        return {**inherited_environment(self._options.environment), **platform, **self._options.variables}

    def _endpoint(self, client: ContainerClient, models: EndpointModels | None) -> Endpoint:
        if models is None:
            return SingleModelEndpoint(client, self._limits, self.report)
        return MultiModelEndpoint(client, models, self._limits, self.report)


def _summary(api: RuntimeApi, models: EndpointModels | None) -> str:
    text = counted(api.calls, "invocation")
    return text if models is None else f"{text}, {counted(models.evictions, 'model')} evicted"
