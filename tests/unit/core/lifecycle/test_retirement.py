"""Versions that leave while requests run, made as the loader makes them, on a backend that can be held."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import LIMIT_S, Bench, living, threads, weight_of, write
from tests.waiting import until
from trident.core.errors import ServerStopping
from trident.core.lifecycle.model import Retirement
from trident.core.lifecycle.state import UNLOADED, ModelState
from trident.core.lifecycle.version import ModelVersion


@contextmanager
def serving(repository: Path) -> Iterator[tuple[Bench, ModelVersion, Retirement]]:
    """A model whose version the test unloads, so that the server does not at its exit."""
    write(repository, "m", 1)
    with living(repository) as bench:
        version = bench.version("m")
        yield bench, version, Retirement()
        until(lambda: version.state.current is ModelState.UNAVAILABLE)
        bench.lifecycle.models.all()[0].serving = {}


def test_a_version_is_unloading_until_running_requests_are_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as (bench, version, retirement):
        model = bench.backend.models[0]
        with bench.running("m") as responses:
            retirement.begin(version, "a test")
            assert version.state.current is ModelState.UNLOADING
            assert not retirement.wait(0)
            assert not model.is_closed
            assert version.in_flight == 1
        assert retirement.wait(LIMIT_S)
        assert (version.state.current, version.state.reason) == (ModelState.UNAVAILABLE, UNLOADED)
        assert weight_of(responses) == 1
        assert model.is_closed


def test_queued_requests_still_run_until_the_wait_ends(tmp_path: Path) -> None:
    with serving(tmp_path) as (bench, version, retirement):
        with bench.running("m") as running:
            queued = bench.submit("m")
            retirement.begin(version, "a test")
            with pytest.raises(
                ServerStopping, match="scheduler for model has stopped accepting new inference requests"
            ):
                bench.ask("m")
            assert queued.empty()
            # The time is over: queued requests are refused, running ones continue.
            assert not retirement.wait(0)
            with pytest.raises(ServerStopping):
                weight_of(queued)
            assert running.empty()
        assert weight_of(running) == 1


def test_the_log_names_the_versions_with_requests_in_flight(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    retirement = Retirement(report_s=0.001)
    found = f"Timeout {LIMIT_S:.0f}: Found 1 model versions that have in-flight inferences"
    with serving(tmp_path) as (bench, version, _), ThreadPoolExecutor(1) as pool:
        with bench.running("m"):
            retirement.begin(version, "a test")
            waiting = pool.submit(retirement.wait, LIMIT_S)
            until(lambda: caplog.messages.count(found) >= 2)
            assert "Model 'm' (version 1) has 1 in-flight inferences" in caplog.messages
        assert waiting.result(LIMIT_S)
    assert Retirement().wait(3)
    assert caplog.messages[-1] == "Timeout 3: Found 0 model versions that have in-flight inferences"


def test_wait_returns_at_once_when_nothing_leaves() -> None:
    assert Retirement().wait(0)
    assert threads() == []


def test_every_accepted_request_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as (bench, version, retirement):
        with bench.running("m"):
            queued = [bench.submit("m") for _ in range(20)]
            retirement.begin(version, "a test")
        assert retirement.wait(LIMIT_S)
        assert [weight_of(responses) for responses in queued] == [1] * 20
