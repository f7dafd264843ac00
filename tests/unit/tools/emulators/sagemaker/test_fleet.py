"""The copies behind an endpoint: their placement, and the copy that gets a request. The containers are scripted."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.tools.emulators.scripted_container import LIMIT_S, Answer, Call, ScriptedContainer, watch_until
from tests.waiting import until
from trident.core.errors import ConfigInvalid
from trident.tools.emulators.container import BreachReport, Container, ContainerClient
from trident.tools.emulators.sagemaker.endpoint import EndpointModels, SageMakerLimits
from trident.tools.emulators.sagemaker.fleet import Fleet, PingProbes
from trident.tools.emulators.sagemaker.hosting import Hosting
from trident.tools.emulators.sagemaker.invocation import PREFIX_AWARE_ID, SESSION, ApiError, Invocation

LIMITS = SageMakerLimits(connect_s=LIMIT_S, ping_s=LIMIT_S)


def hosting(instances: int, **more: Any) -> Hosting:
    """An endpoint with these attributes, without the check of a settings file."""
    given = {"component": {}, "routing": {}, "serverless": {}, "scraped": ("", 0.0), **more}
    return cast(Hosting, SimpleNamespace(instances=instances, **given))


class Copies(ExitStack):
    """A fleet of scripted containers, which answer with their number, once `held` is set. A context manager."""

    def __init__(self, count: int, **more: Any) -> None:
        super().__init__()
        self.held = threading.Event()
        self.held.set()
        self.said: list[str] = []
        self.scripted: list[ScriptedContainer] = []
        limits = more.pop("limits", LIMITS)
        self.fleet = Fleet(self._start, hosting(count, **more), limits, BreachReport(), self.said.append)
        assert self.fleet.wait_until_ready(lambda: False)

    def _start(self, port: int) -> Container:
        number = len(self.scripted)

        def answer(call: Call) -> Answer:
            if call.path == "/ping":
                return Answer()
            assert self.held.wait(LIMIT_S)
            headers = {"X-Amzn-SageMaker-New-Session-Id": call.body.decode()} if b"Expires" in call.body else {}
            return Answer(body=str(number).encode(), headers=headers)

        self.scripted.append(self.enter_context(ScriptedContainer(answer, port)))
        return cast(Container, SimpleNamespace(exit_status=None, stop=lambda *_: None, kill=lambda: None))

    def number(self, body: bytes = b"", **headers: str) -> int:
        return int(self.fleet.invoke(Invocation(headers, body)).body)


def test_equal_prefix_and_id_go_to_one_copy_until_it_is_busy() -> None:
    prefix = {"PrefixLength": 4, "ConcurrencyThreshold": 1}
    with Copies(3, routing={"RoutingStrategy": "PREFIX_AWARE", "PrefixAwareRoutingConfig": prefix}) as found:
        chosen = {found.number(b"same and %d" % n) for n in range(6)}
        assert len(chosen) == 1
        assert len({found.number(b"same", **{PREFIX_AWARE_ID: str(n)}) for n in range(20)}) > 1
        found.held.clear()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(found.number, b"same")
            until(lambda: sum(len(each.calls) for each in found.scripted) > 29)
            second = pool.submit(found.number, b"same")
            until(lambda: sum(len(each.calls) for each in found.scripted) > 30)
            found.held.set()
        assert {first.result()} == chosen
        assert second.result() not in chosen


def test_least_outstanding_requests_takes_the_idle_copy() -> None:
    with Copies(2, routing={"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}) as found:
        found.held.clear()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(found.number)
            until(lambda: sum(len(each.calls) for each in found.scripted) == 3)
            second = pool.submit(found.number)
            until(lambda: sum(len(each.calls) for each in found.scripted) == 4)
            found.held.set()
        assert {first.result(), second.result()} == {0, 1}


def test_expired_session_is_refused_and_streams_cannot_open_one() -> None:
    with Copies(2) as found:
        found.number(b"old; Expires=2001-01-01T00:00:00Z", **{SESSION: "NEW_SESSION"})
        opened = found.number(b"new; Expires=2901-01-01T00:00:00Z", **{SESSION: "NEW_SESSION"})
        assert {found.number(**{SESSION: "new"}) for _ in range(6)} == {opened}
        with pytest.raises(ApiError, match="has expired"):
            found.number(**{SESSION: "old"})
        with (
            pytest.raises(ApiError, match="InvokeEndpoint"),
            found.fleet.stream(Invocation({SESSION: "NEW_SESSION"}, b"")),
        ):
            pass


def test_serverless_endpoint_refuses_calls_beyond_its_concurrency() -> None:
    with Copies(1, serverless={"MaxConcurrency": 1}) as found, ThreadPoolExecutor(1) as pool:
        found.held.clear()
        first = pool.submit(found.number)
        until(lambda: len(found.scripted[0].calls) == 2)
        with pytest.raises(ApiError) as raised:
            found.number()
        assert (raised.value.status, raised.value.kind) == (429, "ThrottlingException")
        found.held.set()
        assert first.result() == 0


def test_idle_serverless_endpoint_starts_its_container_at_the_next_call() -> None:
    limits = SageMakerLimits(connect_s=LIMIT_S, ping_s=LIMIT_S, serverless_idle_s=0, probe_interval_s=0.01)
    stopped = threading.Event()
    with Copies(1, serverless={"MaxConcurrency": 2}, limits=limits) as found, ThreadPoolExecutor(3) as pool:
        watching = pool.submit(found.fleet.watch, stopped)
        until(lambda: not found.fleet.current)
        stopped.set()
        watching.result()
        answers = [pool.submit(found.number) for _ in range(2)]
        assert [each.result() for each in answers] == [1, 1]
        ended, started = found.said
        assert "idle has none" in ended
        assert re.fullmatch(r"cold start: a call waited [\d.]+ s for the container, which may take 480 s", started)


def test_copies_without_room_are_refused() -> None:
    needs = {"MinMemoryRequiredInMb": 128, "NumberOfAcceleratorDevicesRequired": 1.0}
    component = {"Specification": {"ComputeResourceRequirements": needs}, "RuntimeConfig": {"CopyCount": 1}}
    one = hosting(1, component=component)
    fleet = Fleet(lambda port: pytest.fail("a container was started"), one, LIMITS, BreachReport(), lambda _: None)
    with pytest.raises(ConfigInvalid, match="has no room for 1 copies"):
        fleet.wait_until_ready(lambda: False)


def variant(**members: Any) -> dict[str, Any]:
    return {"CreateEndpointConfig": {"ProductionVariants": [members]}}


SERVERLESS = {"MemorySizeInMB": 2048, "MaxConcurrency": 5}


@pytest.mark.parametrize(
    ("settings", "multi_model", "text"),
    [
        (variant(InitialInstanceCount=2), True, "one instance"),
        (variant(ServerlessConfig={**SERVERLESS, "MemorySizeInMB": 1500}), False, "steps of 1024"),
        (variant(ServerlessConfig={**SERVERLESS, "MaxConcurrency": 201}), False, "MaxConcurrency is 201"),
        (variant(EnableSSM=True), False, "EnableSSM"),
        ({**variant(ServerlessConfig=SERVERLESS), "CreateInferenceComponent": {}}, False, "no inference components"),
    ],
)
def test_hosting_that_the_platform_refuses_is_refused(settings: dict[str, Any], multi_model: bool, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        Hosting(settings).check(multi_model=multi_model)


def test_limits_are_those_of_the_kind_of_endpoint() -> None:
    config = {"CreateEndpointConfig": {"AsyncInferenceConfig": {"OutputConfig": {"S3OutputPath": "s3://a/b"}}}}
    limits = [Hosting(each).limits(SageMakerLimits()) for each in ({}, config, variant(ServerlessConfig=SERVERLESS))]
    assert [each.body_bytes >> 20 for each in limits] == [25, 1024, 4]
    assert [each.invoke_s for each in limits] == [60.0, 3600.0, 60.0]


# --- probes


QUICK = SageMakerLimits(startup_s=0.1, ping_s=LIMIT_S, probe_interval_s=0.005)


class Probed:
    """PingProbes of a scripted container that "runs" until the test sets its exit status."""

    def __init__(
        self,
        answer: Callable[[Call], Answer],
        limits: SageMakerLimits = QUICK,
        loaded: dict[str, str] | None = None,
        scraped: str = "",
    ) -> None:
        self.scripted = ScriptedContainer(answer)
        self.running = SimpleNamespace(exit_status=None)
        self.report = BreachReport()
        client = ContainerClient(self.scripted.port, limits)
        models = None if loaded is None else cast(EndpointModels, SimpleNamespace(loaded=lambda: loaded))
        container = cast(Container, self.running)
        self.probes = PingProbes(container, client, limits, self.report, models, (scraped, 0.0))

    def is_ready(self, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        with self.scripted:
            return self.probes.wait_until_ready(is_stopped)

    def watch_until(self, condition: Callable[[], Any]) -> list[str]:
        """Probe until the condition holds, and return the breaches."""
        with self.scripted:
            watch_until(self.probes.watch, condition)
        return list(self.report.breaches)

    def first_breach(self) -> str:
        (breach,) = self.watch_until(lambda: self.report.breaches)
        return breach


def test_the_wait_ends_when_the_container_ends() -> None:
    probed = Probed(lambda call: Answer(503), SageMakerLimits())
    probed.running.exit_status = 3
    assert not probed.is_ready()
    assert list(probed.report.breaches) == ["the container ended by itself, with status 3"]


def test_container_that_is_not_ready_in_time_is_stopped() -> None:
    probed = Probed(lambda call: Answer(503, b"busy"), SageMakerLimits(startup_s=0.0))
    assert not probed.is_ready()
    assert list(probed.report.breaches) == [
        "the container was not ready 0 ms after its start: at the last probe it answered 503: busy"
    ]


def test_stopping_ends_the_wait_for_the_start() -> None:
    probed = Probed(lambda call: Answer(503), SageMakerLimits())
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
