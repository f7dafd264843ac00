"""The emulator: gives one container its files, environment and port, probes it, forwards calls to it, and stops it.

Source: docs/spec/sagemaker.md sections A1 to A5.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from adapters.sagemaker.settings import BIND_TO_PORT, MULTI_MODEL, as_integer
from app.emulators.common.breach_report import BreachReport
from app.emulators.common.container import Container, free_port
from app.emulators.common.container_client import HOST, ContainerClient
from app.emulators.common.inherited_environment import HTTP_ADDRESS, inherited_environment
from app.emulators.common.interrupted import Interrupted
from app.emulators.common.read_only_folder import remove_folder
from app.emulators.sagemaker.api_server import RuntimeApi
from app.emulators.sagemaker.endpoint import Endpoint, MultiModelEndpoint, SingleModelEndpoint
from app.emulators.sagemaker.endpoint_models import EndpointModels
from app.emulators.sagemaker.limits import PlatformLimits
from app.emulators.sagemaker.model_archives import ModelArchives
from app.emulators.sagemaker.probes import Probes
from app.emulators.sagemaker.tarball import unpack
from core.errors import ConfigInvalid
from core.observability.console import print_line

# The only argument that the platform passes to the image's entry point.
_START = "serve"
_MODEL_ROOT = "TRIDENT_SAGEMAKER_MODEL_ROOT"
_MODELS_ROOT = "TRIDENT_SAGEMAKER_MODELS_ROOT"
_LAST_PORT = 65535
_FAILED = 1


@dataclass(frozen=True, kw_only=True)
class EmulatorOptions:
    """`model` is a folder or a .tar.gz, or with `multi_model` a folder of such archives; `api_port` 0 is any free one.

    `command` is the container's entry point, `environment` the emulator's, and `variables` are the model's.
    """

    model: Path
    multi_model: bool = False
    api_port: int = 0
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: PlatformLimits = field(default_factory=PlatformLimits)


class Emulator:
    """Runs once. `out` gets messages for the user, `err` each breach as it happens."""

    def __init__(self, options: EmulatorOptions, out: TextIO, err: TextIO | None = None) -> None:
        self._options = options
        self._limits = options.limits
        self._out = out
        self.report = BreachReport(err)

    def run(self, stopped: threading.Event, on_ready: Callable[[str], None] | None = None) -> int:
        """Run until `stopped` is set or the container ends; return the exit status, which is 1 if a limit was broken.

        `on_ready` is called with the runtime API's address. Raises ConfigInvalid for a model that cannot be used.
        """
        with tempfile.TemporaryDirectory(prefix="trident-sagemaker-") as folder:
            try:
                self._run_in(Path(folder), stopped, on_ready)
            except Interrupted:
                pass  # no container was started
            finally:
                remove_folder(Path(folder) / "ml")
        self._say(self.report.text().rstrip())
        return _FAILED if self.report.breaches else 0

    def _run_in(self, folder: Path, stopped: threading.Event, on_ready: Callable[[str], None] | None) -> None:
        model_root, models_root = self._roots(folder / "ml", stopped.is_set)
        port = self._port()
        client = ContainerClient(port, self._limits)
        archives = ModelArchives(self._options.model, models_root, self._limits.archive_bytes)
        models = EndpointModels(client, archives, self._limits, self.report) if self._options.multi_model else None
        api = RuntimeApi(self._endpoint(client, models), self._options.api_port, self._limits, self.report)
        with contextlib.closing(api):
            container = Container([*self._options.command, _START], self._environment(model_root, models_root, port))
            try:
                probes = Probes(container, client, self._limits, self.report, models)
                if probes.wait_until_ready(stopped.is_set):
                    with api:
                        self._say(f"the container is ready; the runtime API is at {api.url}")
                        if on_ready is not None:
                            on_ready(api.url)
                        probes.watch(stopped)
                    self._say(_summary(api, models))
                client.close()  # first, because a container that was told to end need not answer new requests
                container.stop(self._limits.stop_s, self.report)
            finally:
                container.kill()
                archives.close()

    def _roots(self, folder: Path, is_stopped: Callable[[], bool]) -> tuple[Path, Path]:
        """The folders of a single model and of loaded models, of which one exists. Raises Interrupted."""
        model, models_root = self._options.model.absolute(), folder / "models"
        if self._options.multi_model:
            if not model.is_dir():
                raise ConfigInvalid(
                    f"{model} is not a folder", hint="with --multi-model name the folder of the archives"
                )
            models_root.mkdir(parents=True)
            return folder / "model", models_root
        if model.is_dir():
            return model, models_root
        if not model.is_file():
            raise ConfigInvalid(f"there is no {model}", hint="name a folder or a .tar.gz archive")
        (folder / "model").mkdir(parents=True)
        unpack(model, folder / "model", self._limits.archive_bytes, is_stopped=is_stopped)
        return folder / "model", models_root

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

    def _say(self, text: str) -> None:
        print_line(text, self._out)


def _summary(api: RuntimeApi, models: EndpointModels | None) -> str:
    text = _counted(api.calls, "invocation")
    return text if models is None else f"{text}, {_counted(models.evictions, 'model')} evicted"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
