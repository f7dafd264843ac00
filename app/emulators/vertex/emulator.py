"""The emulator: gives one container its artifacts, environment and port, probes it, forwards calls, and stops it.

Source: docs/spec/vertex.md sections A1 to A5.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from trident.app.emulators.container import free_port
from trident.app.emulators.emulator import PlatformEmulator, PlatformOptions, counted
from trident.app.emulators.vertex.api import VertexApi
from trident.app.emulators.vertex.batch import BatchCounts, BatchJob, BatchOptions
from trident.app.emulators.vertex.container import (
    STORAGE_SCHEME,
    DeployedContainer,
    container_arguments,
    container_environment,
    machine_variables,
    platform_variables,
    provided,
)
from trident.app.emulators.vertex.limits import Deployment, PlatformLimits


@dataclass(frozen=True, kw_only=True)
class EmulatorOptions(PlatformOptions):
    """`model` is a gs:// address or a folder. With `batch` a job runs instead of an API.

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
        batch = self._options.batch
        if batch is not None:
            batch.check()
        (folder / "disk").mkdir()
        storage_uri = provided(self._options.model, folder / "artifacts", stopped.is_set)
        deployed = self._deployed(storage_uri, folder / "disk")
        if batch is not None:
            counts = self._predict_batch(deployed, batch, stopped)
            return counts.is_whole and not counts.failed
        deployment, port = self._options.deployment, self._options.api_port
        api = VertexApi(deployed.endpoint, deployment, port, self._limits, self.report, self._say)
        with contextlib.closing(api), deployed as probes:
            if self._serve(api, probes, stopped, str(deployment.endpoint)):
                self._say(counted(api.calls, "call"))
        return True

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

    def _deployed(self, storage_uri: str, disk: Path) -> DeployedContainer:
        options, port = self._options, free_port()
        platform = platform_variables(options.deployment, port, storage_uri)
        cache = options.cache if storage_uri.startswith(STORAGE_SCHEME) else None
        machine = machine_variables(free_port(), disk, cache)
        return DeployedContainer(
            [*options.command, *container_arguments(options.arguments, platform, options.variables)],
            container_environment(options.environment, machine, platform, options.variables),
            port,
            options.deployment,
            self._limits,
            self.report,
            self._say,
        )
