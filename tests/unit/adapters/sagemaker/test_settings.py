"""The settings of the adapter and of the server from SageMaker's variables."""

from __future__ import annotations

import re

import pytest

from tests.project import ROOT
from trident.adapters.common.options import SettingRow
from trident.adapters.sagemaker.platform import (
    EFFECTIVE_VARIABLES,
    WITHOUT_EFFECT,
    SageMakerSettings,
    additional_arguments,
    misspelled,
    parse_port_range,
    read_sagemaker_settings,
    server_options,
)
from trident.core.errors import ConfigInvalid


def read(**environ: str) -> SageMakerSettings:
    return read_sagemaker_settings(environ)


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("SAGEMAKER_MULTI_MODEL", "true", "multi_model", True),
        ("SAGEMAKER_MULTI_MODEL", "False", "multi_model", False),
        ("SAGEMAKER_BIND_TO_PORT", "9090", "port", 9090),
        ("SAGEMAKER_SAFE_PORT_RANGE", "9000-9010", "safe_port_range", (9000, 9010)),
        ("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "cat", "default_model", "cat"),
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
        ("SAGEMAKER_SAFE_PORT_RANGE", "9010-9000", "LOW-HIGH, two ports from 0 to 65535"),
        ("SAGEMAKER_SAFE_PORT_RANGE", "9000", "LOW-HIGH, two ports from 0 to 65535"),
        ("SAGEMAKER_TRITON_INFERENCE_TYPE", "stream", "infer or generate or generate_stream"),
        ("SAGEMAKER_TRITON_OVERRIDE_PING_MODE", "dead", "ready or live"),
        ("SAGEMAKER_BATCH_STRATEGY", "ALL", "MULTI_RECORD or SINGLE_RECORD"),
        ("SAGEMAKER_MAX_CONCURRENT_TRANSFORMS", "0", "a whole number from 1"),
        ("SAGEMAKER_MAX_CONCURRENT_TRANSFORMS", "9" * 5000, "a whole number from 1"),
    ],
)
def test_a_bad_value_names_the_variable_and_its_accepted_values(variable: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigInvalid) as refusal:
        read(**{variable: text})
    assert refusal.value.message == f"the variable {variable} is '{text}'; it takes {expected}"


def test_describe_returns_the_rows_of_the_table() -> None:
    rows = read(SAGEMAKER_BATCH="1", SAGEMAKER_TRITON_PING_MODE="live").describe()
    assert SettingRow("SAGEMAKER_BATCH", "true", "environment") in rows
    assert SettingRow("SAGEMAKER_TRITON_OVERRIDE_PING_MODE", "live", "environment") in rows
    assert SettingRow("SAGEMAKER_TRITON_INFERENCE_TYPE", "infer", "default") in rows


@pytest.mark.parametrize("text", ["", "1", "-", "1-", "-2", "a-b", "1-2-3", "1-99999", "²-3", "1 - 2"])
def test_an_invalid_port_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        parse_port_range(text)


MB = 1 << 20
PAGE = ROOT / "docs" / "sagemaker.md"


def said(**environ: str) -> dict[str, tuple[str, str]]:
    """Text and source by option; the last one wins."""
    found = server_options(environ, read_sagemaker_settings(environ))
    return {flag: (text, source) for flag, text, source in found}


def test_the_platform_has_its_defaults() -> None:
    assert {flag: text for flag, (text, _) in said().items()} == {
        "allow-sagemaker": "true",
        "allow-http": "false",
        "allow-grpc": "false",
        "allow-metrics": "false",
        "model-control-mode": "explicit",
        "exit-timeout-secs": "23",
        "shutdown-grace-secs": "0",
        "http-max-input-size": str(64 * MB),
    }
    assert {source for _, source in said().values()} == {"platform"}


@pytest.mark.parametrize(
    ("variable", "text", "flag", "value"),
    [
        ("SAGEMAKER_BIND_TO_PORT", "9", "sagemaker-port", "9"),
        ("SAGEMAKER_SAFE_PORT_RANGE", "1-2", "sagemaker-safe-port-range", "1-2"),
        ("SAGEMAKER_TRITON_THREAD_COUNT", "4", "sagemaker-thread-count", "4"),
        ("SAGEMAKER_TRITON_ALLOW_GRPC", "true", "allow-grpc", "true"),
        ("SAGEMAKER_TRITON_GRPC_PORT", "7", "grpc-port", "7"),
        ("SAGEMAKER_TRITON_ALLOW_METRICS", "true", "allow-metrics", "true"),
        ("SAGEMAKER_TRITON_METRICS_PORT", "7", "metrics-port", "7"),
        ("SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT", "2", "buffer-manager-thread-count", "2"),
        ("SAGEMAKER_TRITON_LOG_VERBOSE", "true", "log-verbose", "true"),
        ("SAGEMAKER_TRITON_LOG_INFO", "false", "log-info", "false"),
        ("SAGEMAKER_TRITON_LOG_ERROR", "off", "log-error", "off"),
        ("SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING", "true", "model-namespacing", "false"),
        ("SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING", "false", "model-namespacing", "true"),
        ("SAGEMAKER_MODEL_SERVER_TIMEOUT", "3600", "http-request-timeout-secs", "3600"),
        ("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "30", "http-request-timeout-secs", "30"),
        ("SAGEMAKER_MAX_REQUEST_SIZE", "1000", "http-max-input-size", "1000"),
        ("SAGEMAKER_MAX_PAYLOAD_IN_MB", "7", "http-max-input-size", str(7 * MB)),
        ("SAGEMAKER_MAX_PAYLOAD_IN_MB", "0", "http-max-input-size", str(1024 * MB)),
        ("SAGEMAKER_CONTAINER_LOG_LEVEL", "20", "log-verbose", "0"),
    ],
)
def test_each_variable_sets_its_option(variable: str, text: str, flag: str, value: str) -> None:
    assert said(**{variable: text})[flag] == (value, variable)


@pytest.mark.parametrize(
    ("level", "switches"),
    [
        ("10", ["1", "true", "true", "true"]),
        ("DEBUG", ["1", "true", "true", "true"]),
        ("info", ["0", "true", "true", "true"]),
        ("30", ["0", "false", "true", "true"]),
        ("ERROR", ["0", "false", "false", "true"]),
        ("50", ["0", "false", "false", "false"]),
    ],
)
def test_python_log_levels_become_switches(level: str, switches: list[str]) -> None:
    found = said(SAGEMAKER_CONTAINER_LOG_LEVEL=level)
    assert [found[flag][0] for flag in ("log-verbose", "log-info", "log-warning", "log-error")] == switches


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SAGEMAKER_CONTAINER_LOG_LEVEL", "loud"),
        ("SAGEMAKER_MAX_REQUEST_SIZE", "1 GB"),
        ("SAGEMAKER_MAX_REQUEST_SIZE", str(2**31)),
        ("SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING", "maybe"),
    ],
)
def test_a_bad_value_names_its_variable(variable: str, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"the variable {variable} is '{text}'; it takes "):
        said(**{variable: text})


def test_additional_arguments_are_split_without_shell_expansion() -> None:
    text = "--load-model=a --id 'my server' --log-file=$(whoami);ls"
    assert additional_arguments({"SAGEMAKER_TRITON_ADDITIONAL_ARGS": text}) == [
        "--load-model=a",
        "--id",
        "my server",
        "--log-file=$(whoami);ls",
    ]
    assert additional_arguments({}) == []
    with pytest.raises(ConfigInvalid, match="SAGEMAKER_TRITON_ADDITIONAL_ARGS is not a list of arguments"):
        additional_arguments({"SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--id 'x"})


def test_a_misspelled_triton_variable_is_reported() -> None:
    environ = dict.fromkeys(("SAGEMAKER_TRITON_DEFALT_MODEL_NAME", "SAGEMAKER_TRITON_X", "SAGEMAKER_REGION"), "1")
    environ |= dict.fromkeys((*EFFECTIVE_VARIABLES, *WITHOUT_EFFECT), "1")
    assert misspelled(environ) == [
        "unknown variable SAGEMAKER_TRITON_DEFALT_MODEL_NAME; did you mean SAGEMAKER_TRITON_DEFAULT_MODEL_NAME?",
        "unknown variable SAGEMAKER_TRITON_X",
    ]


def test_exactly_the_known_variables_are_documented() -> None:
    named = set(re.findall(r"`(SAGEMAKER_\w+[A-Z])`", PAGE.read_text()))
    assert named == {*EFFECTIVE_VARIABLES, *WITHOUT_EFFECT}
