"""The copies of a container behind an endpoint: how many there are and where, their probes, and which a request gets.

An endpoint without inference components has one copy on each instance. The copies of a component share the instances,
and there may be none of them.
Source: docs/spec/sagemaker.md sections A3, A6 and A7.
"""

from __future__ import annotations

import os
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from trident.core.errors import ConfigInvalid
from trident.tools.emulators.container import (
    BreachReport,
    ClientClosed,
    Container,
    ContainerAnswer,
    ContainerClient,
    ContainerFault,
    ContainerStream,
    free_port,
    seconds,
)
from trident.tools.emulators.sagemaker.endpoint import (
    EndpointModels,
    SageMakerLimits,
    SingleModelEndpoint,
    read_model_list,
)
from trident.tools.emulators.sagemaker.hosting import Hosting
from trident.tools.emulators.sagemaker.invocation import (
    CLOSED_SESSION,
    COMPONENT,
    NEW_SESSION,
    PREFIX_AWARE_ID,
    SESSION,
    ApiError,
    BidirectionalStream,
    Invocation,
    model_error,
    validation_error,
)

_NEW = "NEW_SESSION"
_MB = 1 << 20
_POLL_S = 0.1
StartContainer = Callable[[int], Container]


@dataclass(eq=False)
class _Copy:
    container: Container
    client: ContainerClient
    endpoint: SingleModelEndpoint
    probes: PingProbes
    instance: int
    is_ready: bool = False
    outstanding: int = 0
    # Held while it is probed, and taken before it is told to end.
    probing: threading.Lock = field(default_factory=threading.Lock)
    is_leaving: bool = False


class Fleet:
    """Implements Endpoint and the probes of its copies. Any thread.

    The container of a serverless endpoint ends when it is idle and starts at the next call.
    """

    def __init__(
        self,
        start: StartContainer,
        hosting: Hosting,
        limits: SageMakerLimits,
        report: BreachReport,
        say: Callable[[str], None],
        port: int = 0,
    ) -> None:
        """`port` is that of the first copy, 0 for any free one."""
        self._start, self._limits, self._report, self._say, self._port = start, limits, report, say, port
        self._component, self._routing, self._scraped = hosting.component, hosting.routing, hosting.scraped
        self._instances, self._most_at_once = hosting.instances, hosting.serverless.get("MaxConcurrency", 0)
        self._last_call_s = time.monotonic()
        self._waking = threading.Lock()
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        self._copies: list[_Copy] = []
        self._is_closed = False
        self._sessions: dict[str, tuple[_Copy, float]] = {}
        self.desired = self._component["RuntimeConfig"]["CopyCount"] if self._component else self._instances

    # --- copies

    def scale(self, count: int, is_stopped: Callable[[], bool]) -> None:
        """Start or stop copies until there are `count`, and wait until they are ready. One scaling at a time.

        Raises ConfigInvalid if the instances have no room for so many, and ClientClosed after `close`.
        """
        with self._changing:
            self.desired = count
            with self._lock:
                surplus = self._copies[count:]
                for copy in surplus:
                    copy.is_ready = False
                self._sessions = {name: each for name, each in self._sessions.items() if each[0] not in surplus}
            for copy in surplus:
                with copy.probing:
                    copy.is_leaving = True
                while copy.outstanding:  # as the platform drains an instance
                    time.sleep(_POLL_S)
                copy.client.close()
                copy.container.stop(self._limits.stop_s, self._report)
                with self._lock:
                    self._copies.remove(copy)
            taken = [copy.instance for copy in self._copies]
            while len(taken) < count:
                instance = self._place(taken)
                if instance is None:
                    raise ConfigInvalid(
                        f"the endpoint ({self._instances} instances) has no room for {count} copies",
                        hint="an instance is as large as this machine; ask for less in ComputeResourceRequirements",
                    )
                taken.append(instance)
            made = [self._started(instance) for instance in taken[len(self._copies) :]]
            for copy in made:
                copy.is_ready = copy.probes.wait_until_ready(is_stopped)

    def _place(self, taken: list[int]) -> int | None:
        """The instance for one more copy beside those of `taken`; None if none has room. An instance has the resources
        of this machine. SPREAD takes the emptiest instance, BINPACK the fullest that has room."""
        specification = self._component.get("Specification", {})
        needs = specification.get("ComputeResourceRequirements", {})
        offered = {
            "NumberOfCpuCoresRequired": os.cpu_count() or 1,
            "MinMemoryRequiredInMb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MB,
            "NumberOfAcceleratorDevicesRequired": 0,
        }
        most = min((int(offered[name] // needs[name]) for name in offered if needs.get(name)), default=1)
        open_ = [each for each in range(self._instances) if taken.count(each) < most]
        strategy = specification.get("SchedulingConfig", {}).get("PlacementStrategy", "SPREAD")
        return (max if strategy == "BINPACK" else min)(open_, key=taken.count, default=None)

    def _started(self, instance: int) -> _Copy:
        port = self._port if self._port and not self._copies else free_port()
        client = ContainerClient(port, self._limits)
        endpoint = SingleModelEndpoint(client, self._limits, self._report)
        with self._lock:
            if self._is_closed:
                raise ClientClosed
            container = self._start(port)
            probes = PingProbes(container, client, self._limits, self._report, scraped=self._scraped)
            copy = _Copy(container, client, endpoint, probes, instance)
            self._copies.append(copy)
        if self._instances > 1 or self._component:
            self._say(f"a copy of the container starts on instance {instance + 1} of {self._instances}")
        return copy

    @property
    def current(self) -> int:
        """Number of ready copies."""
        with self._lock:
            return sum(copy.is_ready for copy in self._copies)

    def close(self) -> None:
        """Stop all copies: first none gets new requests, because one that was told to end need not answer them."""
        with self._lock:
            self._is_closed = True
        for copy in self._copies:
            copy.client.close()
        for copy in self._copies:
            copy.container.stop(self._limits.stop_s, self._report)

    def kill(self) -> None:
        with self._lock:
            self._is_closed = True
        for copy in self._copies:
            copy.container.kill()

    # --- the probes of all copies

    def wait_until_ready(self, is_stopped: Callable[[], bool]) -> bool:
        self.scale(self.desired, is_stopped)
        return self.current == self.desired

    def watch(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._limits.probe_interval_s):
            with self._lock:
                copies = [copy for copy in self._copies if copy.is_ready]
                is_idle = time.monotonic() - self._last_call_s > self._limits.serverless_idle_s
            if self._most_at_once and is_idle and copies:
                self.scale(0, lambda: self._is_closed)
                self._say(
                    "the container has ended: a serverless endpoint that is idle has none, and the next call starts it"
                )
                continue
            for copy in copies:
                with copy.probing:
                    if not copy.is_leaving and not copy.probes.probe():
                        return

    # --- requests

    def invoke(self, invocation: Invocation) -> ContainerAnswer:
        with self._chosen(invocation) as copy:
            answer = copy.endpoint.invoke(invocation)
            self._note_session(copy, answer.headers)
            return answer

    @contextmanager
    def stream(self, invocation: Invocation) -> Iterator[ContainerStream]:
        if invocation.headers.get(SESSION) == _NEW:
            raise validation_error("A session is opened with InvokeEndpoint, not with a response stream")
        with self._chosen(invocation) as copy, copy.endpoint.stream(invocation) as stream:
            self._note_session(copy, stream.headers)
            yield stream

    def bidirectional(self, headers: Mapping[str, str]) -> BidirectionalStream:
        """The call names no component, so an endpoint with one refuses it."""
        with self._chosen(Invocation({}, b"")) as copy:
            return copy.endpoint.bidirectional(headers)

    def _wake(self) -> None:
        """Start the container of a serverless endpoint that has none, and say how long the caller waits for it."""
        with self._waking:
            with self._lock:
                self._last_call_s = time.monotonic()
            if self.current:
                return
            begun = time.monotonic()
            self.scale(1, lambda: self._is_closed)
            taken, most = time.monotonic() - begun, self._limits.startup_s
            self._say(f"cold start: a call waited {taken:.1f} s for the container, which may take {seconds(most)}")

    @contextmanager
    def _chosen(self, invocation: Invocation) -> Iterator[_Copy]:
        if self._most_at_once:
            self._wake()
        with self._lock:
            copy = self._route(invocation)
            copy.outstanding += 1
        try:
            yield copy
        finally:
            with self._lock:
                copy.outstanding -= 1

    def _route(self, invocation: Invocation) -> _Copy:
        """The copy for a request. Raises ApiError. Under the lock."""
        own, named = self._component.get("InferenceComponentName"), invocation.headers.get(COMPONENT)
        if own is None and named is not None:
            raise validation_error("Invocation of an endpoint without inference components with InferenceComponentName")
        if own is not None and named != own:
            raise validation_error(f"Inference Component Name header is required and must be '{own}' here")
        if self._most_at_once and sum(copy.outstanding for copy in self._copies) >= self._most_at_once:
            raise ApiError(429, "ThrottlingException", "Rate exceeded: the endpoint is at its MaxConcurrency")
        session = invocation.headers.get(SESSION)
        if session is not None and session != _NEW:
            copy, expires_s = self._sessions.get(session, (None, 0.0))
            if copy is None or expires_s < time.time():
                self._sessions.pop(session, None)
                raise validation_error(f"Session {session} does not exist or has expired")
            return copy
        ready = [copy for copy in self._copies if copy.is_ready]
        if not ready and self._most_at_once:
            raise model_error(0, "the container did not start")
        if not ready:
            raise validation_error(
                "Inference Component has no capacity to process this request. ApplicationAutoScaling may be in-progress"
                " (if configured) or try to increase the capacity by invoking "
                "UpdateInferenceComponentRuntimeConfig API."
            )
        least = min(copy.outstanding for copy in ready)
        strategy = self._routing.get("RoutingStrategy", "RANDOM")
        if strategy == "PREFIX_AWARE":
            prefix = self._routing.get("PrefixAwareRoutingConfig", {})
            text = invocation.headers.get(PREFIX_AWARE_ID, "").encode() + invocation.body[: prefix.get("PrefixLength")]
            copy = ready[zlib.crc32(text) % len(ready)]
            if copy.outstanding < prefix.get("ConcurrencyThreshold", 1):
                return copy
        elif strategy == "RANDOM":
            return random.choice(ready)
        return random.choice([copy for copy in ready if copy.outstanding == least])

    def _note_session(self, copy: _Copy, headers: list[tuple[str, str]]) -> None:
        found = {name.lower(): value for name, value in headers}
        opened, closed = found.get(NEW_SESSION.lower()), found.get(CLOSED_SESSION.lower())
        with self._lock:
            if opened is not None:
                name, _, expiry = opened.partition("; Expires=")
                try:
                    self._sessions[name] = copy, datetime.fromisoformat(expiry).timestamp()
                except ValueError:
                    self._report.add(f"the container opened a session that expires at '{expiry[:80]}'")
            if closed is not None:
                self._sessions.pop(closed, None)

    # --- the operations of the API on the inference component

    def operations(self) -> Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """The operations of the API that this fleet knows, by name."""
        if not self._component:
            return {"UpdateEndpointWeightsAndCapacities": self.resize}
        return {"DescribeInferenceComponent": self.describe, "UpdateInferenceComponentRuntimeConfig": self.update}

    def describe(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to DescribeInferenceComponent. Raises ApiError."""
        self._check_known(parameters)
        current = self.current
        return {
            **self._component,
            "InferenceComponentArn": _arn(self._component["InferenceComponentName"]),
            "InferenceComponentStatus": "InService" if current == self.desired else "Updating",
            "RuntimeConfig": {"DesiredCopyCount": self.desired, "CurrentCopyCount": current},
        }

    def resize(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Begin what UpdateEndpointWeightsAndCapacities asks for: another number of instances. Raises ApiError."""
        wanted = [each["DesiredInstanceCount"] for each in parameters["DesiredWeightsAndCapacities"]]
        if self._component or len(wanted) != 1:
            raise validation_error("The emulator changes the number of instances of one variant without components")
        self._instances = wanted[0]
        self._begin(wanted[0])
        return {"EndpointArn": f"arn:aws:sagemaker:us-east-1:000000000000:endpoint/{parameters['EndpointName']}"}

    def update(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Begin what UpdateInferenceComponentRuntimeConfig asks for. Raises ApiError."""
        self._check_known(parameters)
        count = parameters["DesiredRuntimeConfig"]["CopyCount"]
        if self.current != self.desired:
            raise validation_error("Cannot update in-progress inference component")
        self._begin(count)
        return {"InferenceComponentArn": _arn(self._component["InferenceComponentName"])}

    def _begin(self, count: int) -> None:
        """Scale on a thread of its own."""
        before, self.desired = self.desired, count

        def scale() -> None:
            try:
                with suppress(ClientClosed):
                    self.scale(count, lambda: self._is_closed)
            except ConfigInvalid as error:
                self.desired = before
                self._say(f"the component keeps {before} copies: {error.message}")

        threading.Thread(target=scale, name="scaling", daemon=True).start()

    def _check_known(self, parameters: Mapping[str, Any]) -> None:
        name = parameters["InferenceComponentName"]
        if self._component.get("InferenceComponentName") != name:
            raise ApiError(400, "ValidationException", f'Could not find inference component "{name}".')


def _arn(name: str) -> str:
    return f"arn:aws:sagemaker:us-east-1:000000000000:inference-component/{name}"


_OK = 200
_PROBE_POLL_S = 0.05


@dataclass(eq=False)
class PingProbes:
    """Probes `container` with `client` and reports breaches. One thread at a time.

    `scraped` is the path of the metrics, empty for none, and the seconds between two scrapes.
    """

    container: Container
    client: ContainerClient
    limits: SageMakerLimits
    report: BreachReport
    models: EndpointModels | None = None
    scraped: tuple[str, float] = ("", 0.0)
    _next_scrape_s: float = 0.0

    def wait_until_ready(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until /ping answers 200. False if it is stopped before, the container ends, or the time is over."""
        deadline = time.monotonic() + self.limits.startup_s
        last = "was not asked"
        while not is_stopped():
            if self._report_end():
                return False
            fault = self._ping_fault()
            if fault is None:
                return True
            last = fault
            if time.monotonic() > deadline:
                limit = seconds(self.limits.startup_s)
                self.report.add(f"the container was not ready {limit} after its start: at the last probe it {last}")
                return False
            time.sleep(_PROBE_POLL_S)
        return False

    def watch(self, stopped: threading.Event) -> None:
        """Probe until `stopped` or the container has ended."""
        while not stopped.wait(self.limits.probe_interval_s):
            if not self.probe():
                return

    def probe(self) -> bool:
        """Probe once and report what is wrong. False if the container has ended."""
        if self._report_end():
            return False
        fault = self._ping_fault()
        if fault is not None and self.container.exit_status is None:
            self.report.add(f"GET /ping: the container {fault}")
        if self.models is not None:
            self._check_list(self.models)
        page, scrape_s = self.scraped
        if page and time.monotonic() >= self._next_scrape_s:
            self._next_scrape_s = time.monotonic() + scrape_s
            try:
                answer = self.client.ask("GET", page, within_s=self.limits.scrape_s)
                if answer.status != _OK:
                    raise ContainerFault(f"answered {answer.status}")
                if not any(text_string_to_metric_families(answer.text)):
                    raise ContainerFault("has no metrics")
            except (ContainerFault, ValueError) as error:
                if self.container.exit_status is None:
                    self.report.add(f"GET {page}, which the platform scrapes: the container {error}")
        return True

    def _report_end(self) -> bool:
        status = self.container.exit_status
        if status is None:
            return False
        self.report.add(f"the container ended by itself, with status {status}")
        return True

    def _ping_fault(self) -> str | None:
        try:
            answer = self.client.ask("GET", "/ping", within_s=self.limits.ping_s)
        except ContainerFault as fault:
            return str(fault)
        if answer.status != _OK:
            return f"answered {answer.status}: {answer.text[:200]}"
        if answer.body:
            return f"answered 200 with a body, which must be empty: {answer.text[:80]}"
        return None

    def _check_list(self, models: EndpointModels) -> None:
        """Check that the list has every model that was loaded both before and after the request for it."""
        before = models.loaded()
        with self.report.faults("GET /models"):
            listed = read_model_list(self.client, self.limits.ping_s)
            after = models.loaded()
            for name in before.keys() & after.keys():
                if name not in listed:
                    self.report.add(f"GET /models: model {name} is loaded and not in the container's list")
                elif listed[name] != after[name]:
                    self.report.add(f"GET /models: the container lists another url for model {name}: {listed[name]}")
