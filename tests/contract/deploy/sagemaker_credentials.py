"""Credentials of an emulator for boto3, without the configuration of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.repository.s3_emulator import REGION, leave_aws


def emulated(endpoint: str) -> tuple[str, ...]:
    """The options for an emulator."""
    return "--region", REGION, "--endpoint-url", endpoint


def set_credentials(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    leave_aws(monkeypatch, folder)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "emulator")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "emulator-secret")
