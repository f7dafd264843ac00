from __future__ import annotations

import os

import pytest

from trident.app.process.environment import (
    announce_metrics_directory,
    disable_telemetry,
    let_openmp_sleep,
    process_environment,
)


def test_the_process_environment_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDENT_ID", "before")
    process_environment()["TRIDENT_ID"] = "after"
    assert process_environment()["TRIDENT_ID"] == "before"


def test_the_metrics_directory_is_announced_to_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/before")
    announce_metrics_directory("/metrics")
    assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == "/metrics"


def test_telemetry_stays_on_for_a_user_who_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    disable_telemetry()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"


def test_telemetry_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    disable_telemetry()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"


def test_openmp_sleeps_unless_a_user_chose_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    let_openmp_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    let_openmp_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
