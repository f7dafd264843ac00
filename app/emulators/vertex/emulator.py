"""The emulator: gives one container its artifacts, environment and port, probes it, forwards calls, and stops it.

Source: docs/spec/vertex.md sections A1 to A5.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from trident.app.emulators.container import free_port, remove_folder
from trident.app.emulators.report import BreachReport, Interrupted
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
from trident.app.settings.reading import CloudCache
from trident.core.observability.log import print_line

_FAILED = 1


@dataclass(frozen=True, kw_only=True)
class EmulatorOptions:
    """`model` is a gs:// address or a folder; `api_port` 0 is any free one. With `batch` a job runs instead of an API.

    `command` is the container's entry point and `arguments` its arguments, `environment` is the emulator's, and
    `variables` are the model's. `cache` keeps artifacts of a gs:// address for the next run.
    """

    model: str
    command: Sequence[str]
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    deployment: Deployment = field(default_factory=Deployment)
    limits: PlatformLimits = field(default_factory=PlatformLimits)
    api_port: int = 0
    batch: BatchOptions | None = None
    cache: CloudCache = field(default_factory=CloudCache)


class Emulator:
    """Runs once. `out` gets messages for the user, `err` each breach as it happens."""

    def __init__(self, options: EmulatorOptions, out: TextIO, err: TextIO | None = None) -> None:
        self._options = options
        self._limits = options.limits
        self._out = out
        self.report = BreachReport(err)

    def run(self, stopped: threading.Event, on_ready: Callable[[str], None] | None = None) -> int:
        """Run until `stopped` is set, the deployment fails or the job is done, and return the exit status.

        The status is 1 if a limit was broken or an instance of the job has no prediction. `on_ready` is called with the
        API's address. Raises ConfigInvalid for a model, a port, or a job's input or output that cannot be used.
        """
        batch, counts = self._options.batch, BatchCounts(is_whole=True)
        if batch is not None:
            batch.check()
        with tempfile.TemporaryDirectory(prefix="trident-vertex-") as folder:
            artifacts, disk = Path(folder) / "artifacts", Path(folder) / "disk"
            disk.mkdir()
            try:
                storage_uri = provided(self._options.model, artifacts, stopped.is_set)
                deployed = self._deployed(storage_uri, disk)
                if batch is None:
                    self._serve(deployed, stopped, on_ready)
                else:
                    counts = self._predict_batch(deployed, batch, stopped)
            except Interrupted:
                pass  # no container was started
            finally:
                remove_folder(artifacts)
        self._say(self.report.text().rstrip())
        return _FAILED if self.report.breaches or counts.failed or not counts.is_whole else 0

    def _serve(
        self, deployed: DeployedContainer, stopped: threading.Event, on_ready: Callable[[str], None] | None
    ) -> None:
        deployment, port = self._options.deployment, self._options.api_port
        api = VertexApi(deployed.endpoint, deployment, port, self._limits, self.report, self._say)
        with contextlib.closing(api), deployed as probes:
            if probes.wait_until_ready(stopped.is_set):
                with api:
                    self._say(f"the container is ready; {deployment.endpoint} is at {api.url}")
                    if on_ready is not None:
                        on_ready(api.url)
                    probes.watch(stopped)
                self._say(f"{api.calls} call{'' if api.calls == 1 else 's'}")

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

    def _say(self, text: str) -> None:
        print_line(text, self._out)
