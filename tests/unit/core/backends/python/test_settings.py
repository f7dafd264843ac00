"""The settings of the backend, the limits of a model, and which models complete their configurations."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from trident.core.backends.python.backend import may_complete
from trident.core.backends.python.settings import ModelLimits, PythonSettings
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
        ("stub-timeout-seconds", "0", "stub-timeout-seconds can't be smaller than or equal to zero"),
        ("stub-timeout-seconds", "soon", "failed to convert 'soon' to integral number"),
        ("shared-memory-byte-size", "1000", "shared-memory-byte-size is 1000, which is not between"),
    ],
)
def test_values_that_cannot_be(name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        PythonSettings.read({name: value})


def test_a_model_has_no_limits_unless_it_sets_them() -> None:
    assert ModelLimits.read({"EXECUTION_ENV_PATH": "/env"}) == ModelLimits(None, None)
    both = {"EXECUTION_LIMIT_SECONDS": "2.5", "MEMORY_LIMIT_BYTES": "1000000"}
    assert ModelLimits.read(both) == ModelLimits(2.5, 1_000_000)


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "nan", "inf"])
@pytest.mark.parametrize("name", ["EXECUTION_LIMIT_SECONDS", "MEMORY_LIMIT_BYTES"])
def test_a_limit_is_a_number_above_zero(name: str, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"parameter '{name}' must be a number above 0, not '{text}'"):
        ModelLimits.read({name: text})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class TritonPythonModel:\n    pass\n", False),
        ("import numpy\n\n\nclass TritonPythonModel(object):\n    pass\n", False),
        ("class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config): ...\n", True),
        ("from base import Base\n\nclass TritonPythonModel(Base):\n    pass\n", True),
        ("from base import TritonPythonModel\n", True),
        ("# class TritonPythonModel:\n", True),
    ],
)
def test_a_process_is_started_only_for_models_that_may_have_something_to_say(
    source: str, expected: bool, tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(source)
    assert may_complete(file) is expected
