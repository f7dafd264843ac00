from __future__ import annotations

import logging

import pytest

from app.settings.reading import read_settings
from app.terminal.start_report import log_services, log_settings

REPOSITORY = "--model-repository=/models"


def test_the_options_that_are_not_at_their_defaults_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_settings(read_settings([REPOSITORY, "--http-port=9"], {"AIP_MODE": "PREDICTION"}))
    tables = {record.message: record.__dict__["table"] for record in caplog.records}
    assert list(tables) == ["options that are not at their defaults", "Vertex AI's settings"]
    assert "http-port" in tables["options that are not at their defaults"]
    assert "metrics-port" not in tables["options that are not at their defaults"]


def test_the_addresses_are_logged_with_tritons_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_services(read_settings([REPOSITORY], {}))
    assert "Started HTTPService at 0.0.0.0:8000" in caplog.messages
