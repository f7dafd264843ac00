"""Emulators of object stores, shared by the tests of this folder. Each test has containers or buckets of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.repository.azurite import Azurite
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator


@pytest.fixture(scope="package")
def s3() -> Iterator[S3Emulator]:
    with S3Emulator() as running:
        yield running


@pytest.fixture(scope="package")
def gcs() -> Iterator[GcsEmulator]:
    with GcsEmulator() as running:
        yield running


@pytest.fixture(scope="package")
def azurite() -> Iterator[Azurite]:
    with Azurite() as running:
        yield running
