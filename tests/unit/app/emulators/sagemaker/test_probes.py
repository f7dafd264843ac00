from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.app.emulators.scripted_container import LIMIT_S, Answer, Call, ScriptedContainer
from tests.waiting import until
from trident.app.emulators.container import BreachReport, Container, ContainerClient
from trident.app.emulators.sagemaker.endpoint import EndpointModels, PlatformLimits
from trident.app.emulators.sagemaker.fleet import Probes

QUICK = PlatformLimits(startup_s=0.1, ping_s=LIMIT_S, probe_interval_s=0.005)


class Probed:
    """Probes of a scripted container that "runs" until the test sets its exit status."""

    def __init__(
        self,
        answer: Callable[[Call], Answer],
        limits: PlatformLimits = QUICK,
        loaded: dict[str, str] | None = None,
        scraped: str = "",
    ) -> None:
        self.scripted = ScriptedContainer(answer)
        self.running = SimpleNamespace(exit_status=None)
        self.report = BreachReport()
        client = ContainerClient(self.scripted.port, limits)
        models = None if loaded is None else cast(EndpointModels, SimpleNamespace(loaded=lambda: loaded))
        container = cast(Container, self.running)
        self.probes = Probes(container, client, limits, self.report, models, scraped=scraped, scrape_s=0.0)

    def is_ready(self, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        with self.scripted:
            return self.probes.wait_until_ready(is_stopped)

    def watch_until(self, condition: Callable[[], Any]) -> list[str]:
        """Probe until the condition holds, and return the breaches."""
        stopped = threading.Event()
        with self.scripted:
            thread = threading.Thread(target=self.probes.watch, args=[stopped])
            thread.start()
            try:
                until(condition)
            finally:
                stopped.set()
                thread.join()
        return list(self.report.breaches)

    def first_breach(self) -> str:
        (breach,) = self.watch_until(lambda: self.report.breaches)
        return breach


def test_the_wait_ends_when_the_container_ends() -> None:
    probed = Probed(lambda call: Answer(503), PlatformLimits())
    probed.running.exit_status = 3
    assert not probed.is_ready()
    assert list(probed.report.breaches) == ["the container ended by itself, with status 3"]


def test_stopping_ends_the_wait_for_the_start() -> None:
    probed = Probed(lambda call: Answer(503), PlatformLimits())
    assert not probed.is_ready(lambda: len(probed.scripted.calls) > 0)
    assert probed.report.breaches == {}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer(503, b"busy"), "GET /ping: the container answered 503: busy"),
        (Answer(200, b"pong"), "GET /ping: the container answered 200 with a body, which must be empty: pong"),
    ],
)
def test_a_failed_probe_of_a_serving_container_is_a_breach(answer: Answer, text: str) -> None:
    assert Probed(lambda call: answer).first_breach() == text


def test_the_end_of_a_serving_container_is_a_breach() -> None:
    probed = Probed(lambda call: Answer())
    probed.running.exit_status = -9
    assert probed.first_breach() == "the container ended by itself, with status -9"


def listing(*models: tuple[str, str]) -> Callable[[Call], Answer]:
    body = json.dumps({"models": [{"modelName": name, "modelUrl": url} for name, url in models]}).encode()
    return lambda call: Answer() if call.path == "/ping" else Answer(body=body)


def test_a_correct_list_is_not_a_breach() -> None:
    probed = Probed(listing(("a", "/a"), ("leaving", "/x")), loaded={"a": "/a"})
    assert probed.watch_until(lambda: probed.scripted.paths().count("GET /models") > 2) == []


@pytest.mark.parametrize(
    ("answer", "breach"),
    [
        (listing(), "model a is loaded and not in the container's list"),
        (listing(("a", "/b")), "the container lists another url for model a: /b"),
        (lambda call: Answer() if call.path == "/ping" else Answer(404), "the container answered 404"),
    ],
    ids=["missing", "another url", "no list"],
)
def test_a_wrong_list_is_a_breach(answer: Callable[[Call], Answer], breach: str) -> None:
    assert Probed(answer, loaded={"a": "/a"}).first_breach() == f"GET /models: {breach}"


@pytest.mark.parametrize(
    ("answer", "breach"),
    [
        (Answer(404), "answered 404"),
        (Answer(body=b"<html>"), "invalid|Invalid|could not|metrics"),
        (Answer(body=b""), "has no metrics"),
    ],
)
def test_metrics_that_the_platform_cannot_scrape_are_a_breach(answer: Answer, breach: str) -> None:
    probed = Probed(lambda call: Answer() if call.path == "/ping" else answer, scraped="/page")
    found = probed.first_breach()
    assert found.startswith("GET /page, which the platform scrapes: the container ")
    assert re.search(breach, found)


def test_metrics_page_is_scraped() -> None:
    probed = Probed(lambda call: Answer(body=b"" if call.path == "/ping" else b"a_total 1\n"), scraped="/metrics")
    assert probed.watch_until(lambda: probed.scripted.paths().count("GET /metrics") > 2) == []
