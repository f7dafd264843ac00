"""The emulator: gives containers their artifacts, environment and port, probes them, forwards calls, and stops them.

Source: docs/spec/vertex.md sections A1 to A5.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from trident.app.emulators.container import free_port
from trident.app.emulators.emulator import PlatformEmulator, PlatformOptions, counted
from trident.app.emulators.vertex.api import VertexApi
from trident.app.emulators.vertex.batch import BatchCounts, BatchJob, BatchOptions
from trident.app.emulators.vertex.container import (
    STORAGE_SCHEME,
    DeployedContainer,
    RunningContainer,
    container_arguments,
    container_environment,
    machine_variables,
    platform_variables,
    provided,
)
from trident.app.emulators.vertex.limits import Deployment, PlatformLimits
from trident.app.emulators.vertex.project import Project


@dataclass(frozen=True, kw_only=True)
class EmulatorOptions(PlatformOptions):
    """`model` is a gs:// address or a folder, "" for an empty project. With `batch` a job runs instead of an API.

    `arguments` are those of the container's entry point. `cache` keeps artifacts of a gs:// address for the next run.
    """

    arguments: Sequence[str] = ()
    deployment: Deployment = field(default_factory=Deployment)
    limits: PlatformLimits = field(default_factory=PlatformLimits)
    batch: BatchOptions | None = None


class Emulator(PlatformEmulator):
    platform = "vertex"

    def __init__(self, options: EmulatorOptions, out: TextIO, err: TextIO | None = None) -> None:
        super().__init__(out, err)
        self._options = options
        self._limits = options.limits

    def _run_in(self, folder: Path, stopped: threading.Event) -> bool:
        """Returns False if an instance of the job has no prediction."""
        options, deployment = self._options, self._options.deployment
        self._folder = folder
        storage_uri = provided(options.model, folder / "artifacts", stopped.is_set) if options.model else ""
        if options.batch is not None:
            options.batch.check()
            deployed = self._deployed(deployment, self._limits, storage_uri, options.arguments, options.variables)
            counts = self._predict_batch(deployed, options.batch, stopped)
            return counts.is_whole and not counts.failed
        project = Project(self._start)
        ready = "the project is empty; its API"
        if options.model:
            project.begin_with(deployment, self._limits, self._model(storage_uri))
            ready = f"the container is ready; {deployment.endpoint}"
        api = VertexApi(project, options.api_port, self.report, self._say)
        with contextlib.closing(api), contextlib.closing(project):
            if self._serve(api, project, stopped, ready):
                self._say(counted(api.calls, "call"))
        return True

    def _model(self, storage_uri: str) -> dict[str, Any]:
        """The document of the model that the options describe."""
        options, deployment = self._options, self._options.deployment
        return {
            "name": deployment.model,
            "displayName": deployment.display_name,
            "versionId": deployment.model_version_id,
            "artifactUri": storage_uri,
            "containerSpec": {
                "args": list(options.arguments),
                "env": [{"name": name, "value": value} for name, value in options.variables.items()],
                "predictRoute": deployment.predict_route,
                "healthRoute": deployment.health_route,
                "invokeRoutePrefix": "/*" if deployment.is_invoked else "",
                "grpcPorts": [{"containerPort": deployment.grpc_port}] if deployment.grpc_port else [],
            },
        }

    def _start(self, deployment: Deployment, limits: PlatformLimits, model: Mapping[str, Any]) -> RunningContainer:
        """Start the container of a model. The server takes the place of its image."""
        spec = model.get("containerSpec", {})
        variables = {each["name"]: each.get("value", "") for each in spec.get("env", ())}
        storage_uri, arguments = model.get("artifactUri", ""), spec.get("args", ())
        return RunningContainer(self._deployed(deployment, limits, storage_uri, arguments, variables))

    def _predict_batch(
        self, deployed: DeployedContainer, options: BatchOptions, stopped: threading.Event
    ) -> BatchCounts:
        """Run the job; its end sets `stopped`, which ends the emulator."""
        job = BatchJob(options, deployed.endpoint)
        with ThreadPoolExecutor(1, "batch job") as pool:
            with deployed as probes:
                if not probes.wait_until_ready(stopped.is_set):
                    return BatchCounts()
                self._say("the container is ready; the job runs")
                future = pool.submit(job.run, stopped.is_set)
                future.add_done_callback(lambda _: stopped.set())
                probes.watch(stopped)
            # The container has ended, so the job waits for no answer.
            counts = future.result()
        self._say(counts.text())
        return counts

    def _deployed(
        self,
        deployment: Deployment,
        limits: PlatformLimits,
        storage_uri: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
    ) -> DeployedContainer:
        options, port = self._options, free_port()
        disk = Path(tempfile.mkdtemp(prefix="disk-", dir=self._folder))
        platform = platform_variables(deployment, port, storage_uri)
        cache = options.cache if storage_uri.startswith(STORAGE_SCHEME) else None
        machine = machine_variables(free_port(), disk, cache)
        return DeployedContainer(
            [*options.command, *container_arguments(arguments, platform, variables)],
            container_environment(options.environment, machine, platform, variables),
            port,
            deployment,
            limits,
            self.report,
            self._say,
        )
