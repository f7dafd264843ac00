"""The container that a model is deployed in: its environment, arguments and artifacts, its life and its probes.

Liveness, a connection to the port, is probed only after a start; health, a request, as long as the container serves.
Until a probe succeeds it is repeated more often than on the platform, to save time; the time limits are the platform's.
Source: docs/spec/vertex.md sections A1 and A2.
"""

from __future__ import annotations

import math
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from trident.adapters.vertex.platform import (
    DEPLOYED_MODEL_ID,
    ENDPOINT_ID,
    HEALTH_ROUTE,
    HTTP_PORT,
    MODE,
    PREDICT_ROUTE,
    PREDICTION,
    STORAGE_URI,
)
from trident.core.errors import ConfigInvalid
from trident.tools.emulators.container import (
    HOST,
    HTTP_ADDRESS,
    BreachReport,
    Container,
    ContainerClient,
    ContainerFault,
    Interrupted,
    inherited_environment,
    make_read_only,
    seconds,
)
from trident.tools.emulators.vertex.endpoint import Deployment, Endpoint, VertexLimits
from trident.tools.options import CloudCache

RESERVED_PREFIX = "AIP_"
_POLL_S = 0.05
_MACHINE_TYPE = "n1-standard-4"
# A real container has its ports to itself and listens on all addresses.
_GRPC_ADDRESS = "TRIDENT_GRPC_ADDRESS"
_METRICS_PORT = "TRIDENT_METRICS_PORT"
_CACHE_DIRECTORY = "TRIDENT_MODEL_CACHE_DIRECTORY"
_CACHE_BYTES = "TRIDENT_MODEL_CACHE_BYTES"
_REFERENCE = re.compile(r"\$(?:\$|\(([A-Za-z_][A-Za-z0-9_]*)\))")


def platform_variables(deployment: Deployment, port: int, storage_uri: str) -> dict[str, str]:
    """The variables that the platform sets for a machine without an accelerator."""
    return {
        HTTP_PORT: str(port),
        PREDICT_ROUTE: deployment.predict_path,
        HEALTH_ROUTE: deployment.health_path,
        STORAGE_URI: storage_uri,
        MODE: PREDICTION,
        "AIP_MODE_VERSION": "1.0.0",
        "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
        ENDPOINT_ID: deployment.endpoint_id,
        DEPLOYED_MODEL_ID: deployment.deployed_model_id,
        "AIP_MODEL_NAME": deployment.endpoint_id,
        "AIP_VERSION_NAME": deployment.deployed_model_id,
        "AIP_MACHINE_TYPE": _MACHINE_TYPE,
        "AIP_PROJECT_NUMBER": deployment.project_number,
    }


def machine_variables(metrics_port: int, disk: Path, cache: CloudCache | None = None) -> dict[str, str]:
    """Variables that isolate the process as a container would; `disk` is removed after it ends.

    `cache` keeps artifacts from the storage for the next run; None: they are on the disk too.
    """
    size = {} if cache is None else {_CACHE_BYTES: str(cache.max_bytes)}
    return {
        **size,
        HTTP_ADDRESS: HOST,
        _GRPC_ADDRESS: HOST,
        _METRICS_PORT: str(metrics_port),
        _CACHE_DIRECTORY: str(disk / "cache" if cache is None else cache.path.absolute()),
        "TMPDIR": str(disk),
    }


def container_environment(
    inherited: Mapping[str, str], machine: Mapping[str, str], platform: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, str]:
    """`inherited` takes the place of the image's variables; `variables` are the model's and may refer to others."""
    return {**inherited_environment(inherited), **machine, **_known(platform, variables)}


def container_arguments(
    arguments: Iterable[str], platform: Mapping[str, str], variables: Mapping[str, str]
) -> list[str]:
    known = _known(platform, variables)
    return [expanded(text, known) for text in arguments]


def _known(platform: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    known = dict(platform)
    for name, text in variables.items():
        known[name] = expanded(text, known)
    return known


def expanded(text: str, known: Mapping[str, str]) -> str:
    """`text` with each `$(NAME)` of `known` replaced; `$$` is a dollar sign, and unknown names stay as they are."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return "$" if name is None else known.get(name, found[0])

    return _REFERENCE.sub(value, text)


class RunningContainer:
    """Runs `command` in `environment`, which listens on `port`, on a thread of its own, which probes it until `stop`.

    `endpoint` sends calls to the container.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        port: int,
        deployment: Deployment,
        limits: VertexLimits,
        report: BreachReport,
        say: Callable[[str], None],
    ) -> None:
        client = ContainerClient(port, limits)
        self._has_traffic: Callable[[], bool] = lambda: False
        self.endpoint = Endpoint(client, deployment, limits, report, lambda: self._has_traffic())
        self._stopped = threading.Event()
        self._is_ready: Future[bool] = Future()

        def run() -> None:
            direct = nullcontext() if self.endpoint.direct is None else closing(self.endpoint.direct)
            try:
                container = Container(command, environment)
                probes = HealthProbes(container, client, deployment.health_path, limits, report, say)
                self._has_traffic = lambda: probes.has_traffic
                with container.serving(client, limits.stop_s, report), direct:
                    self._is_ready.set_result(probes.wait_until_ready(self._stopped.is_set))
                    if self._is_ready.result():
                        probes.watch(self._stopped)
            except OSError as error:  # of the start
                self._is_ready.set_exception(ConfigInvalid(f"the container does not start: {error}"))

        self._thread = threading.Thread(target=run, name="container")
        self._thread.start()

    def wait_until_ready(self, is_stopped: Callable[[], bool]) -> bool:
        """False if it is stopped before, or its deployment has failed. Raises ConfigInvalid if it does not start."""
        while True:
            try:
                return self._is_ready.result(_POLL_S)
            except TimeoutError:
                if is_stopped():
                    self._stopped.set()

    def stop(self) -> None:
        """Returns when the container has ended."""
        self._stopped.set()
        self._thread.join()


# The platform makes its own copy, which does not change. The emulator copies a local folder; for artifacts in a
# storage the container gets the address as given. Source: docs/spec/vertex.md section A1 (AIP_STORAGE_URI).


STORAGE_SCHEME = "gs://"
_PIECE = 1 << 22
_HINT = "name a folder, or a gs:// address with STORAGE_EMULATOR_HOST set where an emulator has it"


def provided(model: str, folder: Path, is_stopped: Callable[[], bool] = lambda: False, hint: str = _HINT) -> str:
    """Copy a local `model` to `folder`, which does not exist yet, and return the text of AIP_STORAGE_URI.

    Raises ConfigInvalid if there is no such model or the copy fails, and Interrupted soon after `is_stopped` returns
    true.
    """

    def copy(source: str, target: str) -> None:
        with open(source, "rb") as reader, open(target, "xb") as writer:
            while piece := reader.read(_PIECE):
                if is_stopped():
                    raise Interrupted
                writer.write(piece)

    if model.startswith(STORAGE_SCHEME):
        if not model.removeprefix(STORAGE_SCHEME).strip("/"):
            raise ConfigInvalid(f"'{model}' names no bucket", hint=_HINT)
        return model
    source = Path(model)
    if not source.is_dir():
        what = "is a file, and artifacts are a folder" if source.exists() else "is not there"
        raise ConfigInvalid(f"{model} {what}", hint=hint)
    try:
        shutil.copytree(source, folder, copy_function=copy)
        make_read_only(folder)
    except (OSError, shutil.Error) as error:
        # The copy of a folder collects all its errors; the first one is told.
        collected = error.args[0] if isinstance(error, shutil.Error) and error.args else None
        reason = collected[0][-1] if isinstance(collected, list) and collected else error.strerror or error
        raise ConfigInvalid(f"{model} cannot be copied: {reason}") from error
    return str(folder)


_OK = 200
_CONNECT_S = 1.0


class _Start(Enum):
    READY = auto()
    STOPPED = auto()
    ENDED = auto()
    LATE = auto()


@dataclass(eq=False)
class HealthProbes:
    """Probes the port and the `health_path` of a container. One thread, except for `has_traffic`.

    `say` gets messages for the user that are not breaches.
    """

    container: Container
    client: ContainerClient
    health_path: str
    limits: VertexLimits
    report: BreachReport
    say: Callable[[str], None]
    has_traffic: bool = False
    """True while calls reach the container. Any thread."""
    _last: str = "was not asked"
    _failures: int = 0

    def wait_until_ready(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until the container is healthy for the first time.

        False if it is stopped before, the container ends, or the time is over: then the deployment has failed.
        """
        outcome = self._start(is_stopped, time.monotonic() + self.limits.deployment_s)
        if outcome is _Start.ENDED:
            self.report.add(f"the container ended by itself, with status {self.container.exit_status}")
        elif outcome is _Start.LATE:
            limit = seconds(self.limits.deployment_s)
            self.report.add(f"the container was not healthy {limit} after its start: at the last probe it {self._last}")
        return outcome is _Start.READY

    def watch(self, stopped: threading.Event) -> None:
        """Probe until `stopped` is set. A container that ends is restarted."""
        while not stopped.wait(self.limits.health_interval_s):
            status = self.container.exit_status
            if status is not None:
                self.has_traffic = False
                self.report.add(f"the container ended by itself, with status {status}, and was started again")
                self.container.restart(self.limits.stop_s, self.report)
                if self._start(stopped.is_set, math.inf) is _Start.READY:
                    self.say("the container is healthy again and gets calls")
            elif self._is_healthy():
                self._failures = 0
                if not self.has_traffic:
                    self.has_traffic = True
                    self.say("the container is healthy again and gets calls")
            else:
                self._failures += 1
                if self._failures >= self.limits.health_failures and self.has_traffic:
                    self.has_traffic = False
                    self.report.add(
                        f"health: {self._failures} failed probes in a row, so the container got no more calls: "
                        f"at the last one it {self._last}"
                    )

    def _start(self, is_stopped: Callable[[], bool], deadline: float) -> _Start:
        """Probe from the start of the container until it is healthy."""
        listens = False
        started = time.monotonic()
        tries, apart_s = self.limits.liveness_tries, self.limits.liveness_interval_s
        while not is_stopped():
            if self.container.exit_status is not None:
                return _Start.ENDED
            if not listens:
                try:
                    socket.create_connection((HOST, self.client.port), _CONNECT_S).close()
                    listens = True
                except OSError:
                    self._last = f"did not listen on port {self.client.port}"
            if listens and self._is_healthy():
                self._failures = 0
                self.has_traffic = True
                return _Start.READY
            now = time.monotonic()
            if now > deadline:
                return _Start.LATE
            # After the platform's last liveness probe.
            if not listens and now - started > (tries - 1) * apart_s:
                self.report.add(
                    f"liveness: the container did not listen on port {self.client.port} in {tries} tries "
                    f"{seconds(apart_s)} apart and was started again"
                )
                self.container.restart(self.limits.stop_s, self.report)
                started = time.monotonic()
            time.sleep(_POLL_S)
        return _Start.STOPPED

    def _is_healthy(self) -> bool:
        try:
            answer = self.client.ask("GET", self.health_path, within_s=self.limits.health_s)
        except ContainerFault as fault:
            self._last = str(fault)
            return False
        self._last = f"answered {answer.status}: {answer.text[:200]}"
        return answer.status == _OK
