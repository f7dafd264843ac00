"""The container of a deployment, from its start to its end.

Source: docs/spec/vertex.md section A2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from app.emulators.common.breach_report import BreachReport
from app.emulators.common.container_client import ContainerClient
from app.emulators.vertex.deployment import Deployment
from app.emulators.vertex.endpoint import Endpoint
from app.emulators.vertex.limits import PlatformLimits
from app.emulators.vertex.probes import Probes
from app.emulators.vertex.replica import Replica


class DeployedContainer:
    """Runs `command` in `environment`, which listens on `port`. A context manager for one use; it gives the probes.

    `endpoint` sends calls to the container; it can be used before the container runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        port: int,
        deployment: Deployment,
        limits: PlatformLimits,
        report: BreachReport,
        say: Callable[[str], None],
    ) -> None:
        self._command = command
        self._environment = environment
        self._port = port
        self._health_path = deployment.health_path
        self._limits = limits
        self._report = report
        self._say = say
        self._client = ContainerClient(port, limits)
        self._probes: Probes | None = None
        self.endpoint = Endpoint(self._client, deployment, limits, report, self._has_traffic)

    def __enter__(self) -> Probes:
        self._replica = Replica(self._command, self._environment)
        self._probes = Probes(
            self._replica, self._client, self._port, self._health_path, self._limits, self._report, self._say
        )
        return self._probes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # First, because a container that was told to end need not answer new requests.
        self._client.close()
        try:
            if kind is None:
                self._replica.stop(self._limits.stop_s, self._report)
        finally:
            self._replica.kill()

    def _has_traffic(self) -> bool:
        return self._probes is not None and self._probes.has_traffic
