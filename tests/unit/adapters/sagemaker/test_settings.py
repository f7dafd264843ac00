"""The adapter's settings from SageMaker's variables."""

from __future__ import annotations

import pytest

from trident.adapters.common.options import SettingRow
from trident.adapters.sagemaker.settings import SageMakerSettings, parse_port_range, read_sagemaker_settings
from trident.core.errors import ConfigInvalid


def read(**environ: str) -> SageMakerSettings:
    return read_sagemaker_settings(environ)


def test_an_empty_environment_gives_the_defaults() -> None:
    found = read(SAGEMAKER_MULTI_MODEL="", TRIDENT_ID="x", SAGEMAKER_REGION="eu-west-1")
    assert found == SageMakerSettings()
    assert (found.port, found.safe_port_range, found.inference_type, found.ping_mode) == (8080, None, "infer", "ready")
    assert (found.batch, found.batch_strategy, found.default_accept) == (False, "MULTI_RECORD", "application/json")
    assert (found.model_root, found.models_root) == ("/opt/ml/model", "/opt/ml/models")


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("SAGEMAKER_MULTI_MODEL", "true", "multi_model", True),
        ("SAGEMAKER_MULTI_MODEL", "False", "multi_model", False),
        ("SAGEMAKER_BIND_TO_PORT", "9090", "port", 9090),
        ("SAGEMAKER_SAFE_PORT_RANGE", "9000-9010", "safe_port_range", (9000, 9010)),
        ("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "cat", "default_model", "cat"),
        ("SAGEMAKER_TRITON_INFERENCE_TYPE", "infer", "inference_type", "infer"),
        ("SAGEMAKER_TRITON_INFERENCE_TYPE", "generate", "inference_type", "generate"),
        ("SAGEMAKER_TRITON_INFERENCE_TYPE", "generate_stream", "inference_type", "generate_stream"),
        ("SAGEMAKER_TRITON_OVERRIDE_PING_MODE", "live", "ping_mode", "live"),
        ("SAGEMAKER_TRITON_PING_MODE", "live", "ping_mode", "live"),
        ("SAGEMAKER_BATCH", "true", "batch", True),
        ("SAGEMAKER_BATCH_STRATEGY", "SINGLE_RECORD", "batch_strategy", "SINGLE_RECORD"),
        ("SAGEMAKER_BATCH_STRATEGY", "SingleRecord", "batch_strategy", "SINGLE_RECORD"),
        ("SAGEMAKER_MAX_PAYLOAD_IN_MB", "100", "max_payload_mb", 100),
        ("SAGEMAKER_MAX_CONCURRENT_TRANSFORMS", "3", "max_concurrent_transforms", 3),
        ("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", "text/csv", "default_accept", "text/csv"),
    ],
)
def test_each_variable_sets_its_field(variable: str, text: str, name: str, value: object) -> None:
    found = read(**{variable: text})
    assert getattr(found, name) == value
    assert found.sources == {name: "environment"}


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("SAGEMAKER_MULTI_MODEL", "yes", "true or false"),
        ("SAGEMAKER_BIND_TO_PORT", "70000", "a whole number from 0 to 65535"),
        ("SAGEMAKER_BIND_TO_PORT", "8080a", "a whole number from 0 to 65535"),
        ("SAGEMAKER_SAFE_PORT_RANGE", "9010-9000", "LOW-HIGH, two ports from 0 to 65535"),
        ("SAGEMAKER_SAFE_PORT_RANGE", "9000", "LOW-HIGH, two ports from 0 to 65535"),
        ("SAGEMAKER_TRITON_INFERENCE_TYPE", "stream", "infer or generate or generate_stream"),
        ("SAGEMAKER_TRITON_OVERRIDE_PING_MODE", "dead", "ready or live"),
        ("SAGEMAKER_BATCH_STRATEGY", "ALL", "MULTI_RECORD or SINGLE_RECORD"),
        ("SAGEMAKER_MAX_PAYLOAD_IN_MB", "-1", "a whole number from 0"),
        ("SAGEMAKER_MAX_CONCURRENT_TRANSFORMS", "0", "a whole number from 1"),
        ("SAGEMAKER_MAX_CONCURRENT_TRANSFORMS", "9" * 5000, "a whole number from 1"),
    ],
)
def test_a_bad_value_names_the_variable_and_its_accepted_values(variable: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigInvalid) as refusal:
        read(**{variable: text})
    assert refusal.value.message == f"the variable {variable} is '{text}'; it takes {expected}"


def test_ping_mode_follows_the_mode_unless_overridden() -> None:
    assert read(SAGEMAKER_MULTI_MODEL="true").ping_mode == "live"
    assert read(SAGEMAKER_MULTI_MODEL="true", SAGEMAKER_TRITON_OVERRIDE_PING_MODE="ready").ping_mode == "ready"
    both = {"SAGEMAKER_TRITON_OVERRIDE_PING_MODE": "ready", "SAGEMAKER_TRITON_PING_MODE": "live"}
    assert read(**both).ping_mode == "ready"


@pytest.mark.parametrize(("payload", "transforms"), [("1", 16), ("6", 16), ("25", 4), ("100", 1), ("200", 1), ("0", 1)])
def test_transforms_fill_the_platforms_limit_in_flight(payload: str, transforms: int) -> None:
    assert read(SAGEMAKER_MAX_PAYLOAD_IN_MB=payload).max_concurrent_transforms == transforms


def test_options_override_variables() -> None:
    environ = {"SAGEMAKER_BIND_TO_PORT": "1", "SAGEMAKER_SAFE_PORT_RANGE": "1-2"}
    found = read_sagemaker_settings(environ, port=3, safe_port_range=(3, 4), model_root="/m", models_root="/ms")
    assert (found.port, found.safe_port_range, found.model_root, found.models_root) == (3, (3, 4), "/m", "/ms")
    assert read_sagemaker_settings(environ, safe_port_range=None).safe_port_range is None


def test_describe_returns_the_rows_of_the_table() -> None:
    rows = read(SAGEMAKER_BATCH="1", SAGEMAKER_TRITON_PING_MODE="live").describe()
    assert SettingRow("SAGEMAKER_BATCH", "true", "environment") in rows
    assert SettingRow("SAGEMAKER_TRITON_OVERRIDE_PING_MODE", "live", "environment") in rows
    assert SettingRow("SAGEMAKER_TRITON_INFERENCE_TYPE", "infer", "default") in rows


@pytest.mark.parametrize("text", ["", "1", "-", "1-", "-2", "a-b", "1-2-3", "1-99999", "²-3", "1 - 2"])
def test_an_invalid_port_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        parse_port_range(text)
