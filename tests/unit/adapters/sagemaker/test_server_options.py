"""The server options that SageMaker's variables set."""

from __future__ import annotations

import re

import pytest

from tests.project import ROOT
from trident.adapters.sagemaker.settings import (
    EFFECTIVE_VARIABLES,
    WITHOUT_EFFECT,
    additional_arguments,
    arguments_behind,
    misspelled,
    read_sagemaker_settings,
    server_options,
    variables_without_effect,
)
from trident.core.errors import ConfigInvalid

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
        ("SAGEMAKER_TRITON_LOG_WARNING", "0", "log-warning", "0"),
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


def test_batch_mode_allows_larger_bodies() -> None:
    assert said(SAGEMAKER_BATCH="true")["http-max-input-size"] == (str(100 * MB), "platform")
    with_payload = said(SAGEMAKER_BATCH="true", SAGEMAKER_MAX_PAYLOAD_IN_MB="6")
    assert with_payload["http-max-input-size"] == (str(100 * MB), "SAGEMAKER_MAX_PAYLOAD_IN_MB")
    both = said(SAGEMAKER_MAX_REQUEST_SIZE="1000", SAGEMAKER_MAX_PAYLOAD_IN_MB="7")
    assert both["http-max-input-size"] == ("1000", "SAGEMAKER_MAX_REQUEST_SIZE")


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


def test_options_behind_the_value_of_a_variable_are_arguments() -> None:
    environ = {"SAGEMAKER_TRITON_LOG_INFO": "false --load-model=enc --load-model dec"}
    assert said(**environ)["log-info"] == ("false", "SAGEMAKER_TRITON_LOG_INFO")
    assert arguments_behind(environ) == {"SAGEMAKER_TRITON_LOG_INFO": ["--load-model=enc", "--load-model", "dec"]}


def test_triton_log_switches_override_the_level() -> None:
    found = said(SAGEMAKER_CONTAINER_LOG_LEVEL="40", SAGEMAKER_TRITON_LOG_INFO="true")
    assert found["log-info"] == ("true", "SAGEMAKER_TRITON_LOG_INFO")


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


def test_only_variables_without_effect_are_reported() -> None:
    environ = dict.fromkeys(("SAGEMAKER_PROGRAM", "SAGEMAKER_REGION", "SAGEMAKER_BATCH", "SOMETHING"), "1")
    assert variables_without_effect({**environ, "SAGEMAKER_STARTUP_TIMEOUT": ""}) == ["SAGEMAKER_PROGRAM"]
    assert not set(WITHOUT_EFFECT) & set(EFFECTIVE_VARIABLES)


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
