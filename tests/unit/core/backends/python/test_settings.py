from __future__ import annotations

import logging

import pytest

from trident.core.backends.python.settings import PythonSettings
from trident.core.errors import ConfigInvalid


def test_the_defaults() -> None:
    settings = PythonSettings.read({})
    assert (settings.memory_bytes, settings.finalize_limit_s) == (1 << 30, 30)


def test_the_settings_that_have_an_effect() -> None:
    settings = PythonSettings.read({"shared-memory-byte-size": "4194304", "stub-timeout-seconds": "5"})
    assert (settings.memory_bytes, settings.finalize_limit_s) == (4 << 20, 5)


def test_the_settings_of_tritons_shared_memory_are_accepted_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trident"):
        PythonSettings.read({"shm-growth-byte-size": "1048576", "shm-region-prefix-name": "mine"})
    (record,) = caplog.records
    assert record.getMessage() == (
        "without effect here: --backend-config=python,shm-growth-byte-size, "
        "--backend-config=python,shm-region-prefix-name"
    )


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("shm-default-byte-size", "1048575", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("shm-growth-byte-size", "0", "shm-growth-byte-size can't be smaller than or equal to zero"),
        ("thread-pool-size", "0", "thread-pool-size can't be less than 1"),
        ("stub-timeout-seconds", "0", "stub-timeout-seconds can't be smaller than or equal to zero"),
        ("stub-timeout-seconds", "soon", "failed to convert 'soon' to integral number"),
        ("shared-memory-byte-size", "1000", "shared-memory-byte-size is 1000, which is not between"),
    ],
)
def test_values_that_cannot_be(name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        PythonSettings.read({name: value})
