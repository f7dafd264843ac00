"""Azure ML around one container: the mounted model, the probes, and the endpoint's scoring address.

Source: docs/spec/azureml.md. The probes are those of the Vertex AI emulator, with this platform's routes and times.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flask import Response, request
from werkzeug.exceptions import HTTPException

from trident.adapters.azureml.platform import MODEL_DIR, READY_ROUTE, SCORE_ROUTE
from trident.app.terminal import counted
from trident.tools.emulators.container import ClientClosed, Container, ContainerClient, ContainerFault, free_port
from trident.tools.emulators.emulator import ApiServer, PlatformEmulator, PlatformOptions, Reply
from trident.tools.emulators.vertex.container import HealthProbes, container_environment, machine_variables, provided
from trident.tools.emulators.vertex.endpoint import VertexLimits

DEPLOYMENT = "blue"
_PORT = "TRIDENT_AZUREML_PORT"
_MODEL, _VERSION = "model", "1"
_DROPPED = frozenset({"authorization", "connection", "content-length", "date", "host", "server", "transfer-encoding"})


def limits(request_timeout_s: float) -> VertexLimits:
    """The platform's probes: every 10 s with 2 s for an answer, 30 failures in a row."""
    return VertexLimits(health_s=2.0, health_failures=30, inference_s=request_timeout_s)


@dataclass(frozen=True, kw_only=True)
class EmulatorOptions(PlatformOptions):
    """`model` is a folder. `arguments` are those of the container's entry point."""

    arguments: Sequence[str] = ()
    request_timeout_s: float = 5.0


class Emulator(PlatformEmulator[EmulatorOptions]):
    platform = "azureml"

    def _run_in(self, folder: Path, stopped: threading.Event) -> bool:
        options, port = self._options, free_port()
        mounted, disk = folder / "azureml-models" / _MODEL / _VERSION, folder / "disk"
        for each in (mounted, disk):
            each.mkdir(parents=True)
        # A registered folder keeps its name below the mounted one.
        provided(
            options.model, mounted / (Path(options.model).resolve().name or _MODEL), stopped.is_set, "name a folder"
        )
        variables = {MODEL_DIR: str(mounted), _PORT: str(port)}
        environment = container_environment(
            options.environment, machine_variables(free_port(), disk), variables, options.variables
        )
        bounds = limits(options.request_timeout_s)
        client = ContainerClient(port, bounds)
        api = ScoringApi(client, bounds, options.api_port)
        with contextlib.closing(api):
            container = Container([*options.command, *options.arguments], environment)
            with container.serving(client, bounds.stop_s, self.report):
                api.probes = HealthProbes(container, client, READY_ROUTE, bounds, self.report, self._say)
                if self._serve(api, api.probes, stopped, "the container is ready; the endpoint"):
                    self._say(counted(api.calls, "call"))
        return True


class ScoringApi(ApiServer):
    probes: HealthProbes

    def __init__(self, client: ContainerClient, limits: VertexLimits, port: int) -> None:
        super().__init__(port, "scoring API")
        self._client = client
        self._limits = limits
        self.route("POST", SCORE_ROUTE, self._score)
        self.application.register_error_handler(
            HTTPException, lambda error: _text(error.code, f"the endpoint has one address: POST {SCORE_ROUTE}")
        )

    def _score(self) -> Response:
        body = request.get_data()
        self.count()
        if not self.probes.has_traffic:
            return _text(503, "the deployment is not ready: its readiness probe fails")
        headers = {name: value for name, value in request.headers if name.lower() not in _DROPPED}
        try:
            answer = self._client.ask(
                "POST", SCORE_ROUTE, headers=headers, body=body, within_s=self._limits.inference_s
            )
        except ClientClosed:
            return _text(503, "the deployment is being deleted")
        except ContainerFault as fault:
            return _text(408 if fault.is_late else 502, f"the container {fault}")
        passed = {name: value for name, value in answer.headers if name.lower() not in _DROPPED}
        return Reply(answer.body, answer.status, {**passed, "azureml-model-deployment": DEPLOYMENT})


def _text(status: int, text: str) -> Response:
    return Reply(text, status, mimetype="text/plain")
