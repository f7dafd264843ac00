"""The platform's probes of a container: until it is ready, and while it serves.

Source: docs/spec/sagemaker.md sections A2 and A5.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from trident.app.emulators.container import Container, ContainerClient, ContainerFault
from trident.app.emulators.report import BreachReport, seconds
from trident.app.emulators.sagemaker.endpoint import EndpointModels, PlatformLimits, read_model_list

_OK = 200
_POLL_S = 0.05


class Probes:
    """Probes `container` with `client` and reports breaches. One thread at a time."""

    def __init__(
        self,
        container: Container,
        client: ContainerClient,
        limits: PlatformLimits,
        report: BreachReport,
        models: EndpointModels | None = None,
        *,
        scraped: str = "",
        scrape_s: float = 0.0,
    ) -> None:
        """`scraped` is the path of the metrics that are scraped every `scrape_s`; empty for none."""
        self._container = container
        self._client = client
        self._limits = limits
        self._report = report
        self._models = models
        self._scraped = scraped
        self._scrape_s = scrape_s
        self._next_scrape_s = 0.0

    def wait_until_ready(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until /ping answers 200. False if it is stopped before, the container ends, or the time is over."""
        deadline = time.monotonic() + self._limits.startup_s
        last = "was not asked"
        while not is_stopped():
            if self._report_end():
                return False
            fault = self._ping_fault()
            if fault is None:
                return True
            last = fault
            if time.monotonic() > deadline:
                limit = seconds(self._limits.startup_s)
                self._report.add(f"the container was not ready {limit} after its start: at the last probe it {last}")
                return False
            time.sleep(_POLL_S)
        return False

    def watch(self, stopped: threading.Event) -> None:
        """Probe until `stopped` or the container has ended."""
        while not stopped.wait(self._limits.probe_interval_s):
            if not self.probe():
                return

    def probe(self) -> bool:
        """Probe once and report what is wrong. False if the container has ended."""
        if self._report_end():
            return False
        fault = self._ping_fault()
        if fault is not None and self._container.exit_status is None:
            self._report.add(f"GET /ping: the container {fault}")
        if self._models is not None:
            self._check_list(self._models)
        if self._scraped and time.monotonic() >= self._next_scrape_s:
            self._next_scrape_s = time.monotonic() + self._scrape_s
            self._scrape()
        return True

    def _scrape(self) -> None:
        try:
            answer = self._client.ask("GET", self._scraped, within_s=self._limits.scrape_s)
            if answer.status != _OK:
                raise ContainerFault(f"answered {answer.status}")
            if not any(text_string_to_metric_families(answer.text)):
                raise ContainerFault("has no metrics")
        except (ContainerFault, ValueError) as fault:
            if self._container.exit_status is None:
                self._report.add(f"GET {self._scraped}, which the platform scrapes: the container {fault}")

    def _report_end(self) -> bool:
        status = self._container.exit_status
        if status is None:
            return False
        self._report.add(f"the container ended by itself, with status {status}")
        return True

    def _ping_fault(self) -> str | None:
        try:
            answer = self._client.ask("GET", "/ping", within_s=self._limits.ping_s)
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
        try:
            listed = read_model_list(self._client, self._limits.ping_s)
        except ContainerFault as fault:
            self._report.add(f"GET /models: the container {fault}")
            return
        after = models.loaded()
        for name in before.keys() & after.keys():
            if name not in listed:
                self._report.add(f"GET /models: model {name} is loaded and not in the container's list")
            elif listed[name] != after[name]:
                self._report.add(f"GET /models: the container lists another url for model {name}: {listed[name]}")
