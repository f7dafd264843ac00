"""Azure ML around one container: the mounted model, the probes, and the endpoint's scoring address.

Source: docs/spec/azureml.md. The probes are those of the Vertex AI emulator, with this platform's routes and times.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

from trident.adapters.azureml.platform import MODEL_DIR, READY_ROUTE, SCORE_ROUTE
from trident.app.emulators.api import ApiConnection, ApiServer
from trident.app.emulators.container import ClientClosed, Container, ContainerClient, ContainerFault, free_port
from trident.app.emulators.emulator import PlatformEmulator, PlatformOptions, counted
from trident.app.emulators.vertex.container import container_environment, machine_variables, provided
from trident.app.emulators.vertex.limits import PlatformLimits
from trident.app.emulators.vertex.probes import Probes

DEPLOYMENT = "blue"
_PORT = "TRIDENT_AZUREML_PORT"
_MODEL, _VERSION = "model", "1"
_DROPPED = frozenset({"authorization", "connection", "content-length", "date", "host", "server", "transfer-encoding"})
_PLAIN = {"Content-Type": "text/plain; charset=utf-8"}


def limits(request_timeout_s: float) -> PlatformLimits:
    """The platform's probes: every 10 s with 2 s for an answer, 30 failures in a row."""
    return PlatformLimits(health_s=2.0, health_failures=30, inference_s=request_timeout_s)


@dataclass(frozen=True, kw_only=True)
class EmulatorOptions(PlatformOptions):
    """`model` is a folder. `arguments` are those of the container's entry point."""

    arguments: Sequence[str] = ()
    request_timeout_s: float = 5.0


class Emulator(PlatformEmulator):
    platform = "azureml"

    def __init__(self, options: EmulatorOptions, out: TextIO, err: TextIO | None = None) -> None:
        super().__init__(out, err)
        self._options = options

    def _run_in(self, folder: Path, stopped: threading.Event) -> bool:
        options, port = self._options, free_port()
        mounted, disk = folder / "azureml-models" / _MODEL / _VERSION, folder / "disk"
        for each in (mounted, disk):
            each.mkdir(parents=True)
        # A registered folder keeps its name below the mounted one.
        provided(options.model, mounted / (Path(options.model).resolve().name or _MODEL), stopped.is_set)
        variables = {MODEL_DIR: str(mounted), _PORT: str(port)}
        environment = container_environment(
            options.environment, machine_variables(free_port(), disk), variables, options.variables
        )
        bounds = limits(options.request_timeout_s)
        client = ContainerClient(port, bounds)
        api = ScoringApi(client, bounds, options.api_port)
        with contextlib.closing(api):
            container = Container([*options.command, *options.arguments], environment)
            try:
                api.probes = Probes(container, client, port, READY_ROUTE, bounds, self.report, self._say)
                if self._serve(api, api.probes, stopped, "the container is ready; the endpoint"):
                    self._say(counted(api.calls, "call"))
                client.close()
                container.stop(bounds.stop_s, self.report)
            finally:
                container.kill()
        return True


class ScoringApi(ApiServer):
    """Serves the scoring address on `port`, 0 for any free one."""

    probes: Probes

    def __init__(self, client: ContainerClient, limits: PlatformLimits, port: int) -> None:
        self.client = client
        self.limits = limits
        super().__init__(port, _Connection, "scoring API")


class _Connection(ApiConnection):
    def refusal(self, text: str) -> Exception:
        return ConnectionResetError(text)

    def do_POST(self) -> None:
        api = cast(ScoringApi, self.server.api)
        body = self.read_body(self.body_length())
        if self.path != SCORE_ROUTE:
            self._say(404, f"the endpoint has one address: POST {SCORE_ROUTE}")
            return
        api.count()
        if not api.probes.has_traffic:
            self._say(503, "the deployment is not ready: its readiness probe fails")
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _DROPPED}
        try:
            answer = api.client.ask("POST", SCORE_ROUTE, headers=headers, body=body, within_s=api.limits.inference_s)
        except ClientClosed:
            self._say(503, "the deployment is being deleted")
        except ContainerFault as fault:
            self._say(408 if fault.is_late else 502, f"the container {fault}")
        else:
            passed = {name: value for name, value in answer.headers if name.lower() not in _DROPPED}
            self.reply(answer.status, {**passed, "azureml-model-deployment": DEPLOYMENT}, answer.body)

    def _say(self, status: int, text: str) -> None:
        self.reply(status, _PLAIN, text.encode())
