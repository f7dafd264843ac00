from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import FrozenInstanceError, fields
from io import StringIO
from pathlib import Path

import pytest

from trident.adapters.common.options import BadOption, SettingRow
from trident.app.emulators.usage import EMULATE_USAGE
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.reading import read_settings
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings
from trident.app.settings.usage import HELP_TOPIC, USAGE, serve_usage

REPOSITORY = "--model-repository=/models"


def settings(*arguments: str, **environ: str) -> ServerSettings:
    return read_settings([REPOSITORY, *arguments], environ)


def test_the_defaults_are_tritonservers() -> None:
    found = settings()
    assert found.model_repository == ("/models",)
    assert (found.server_id, found.http_address, found.http_port, found.metrics_port) == (
        "triton",
        "0.0.0.0",
        8000,
        8002,
    )
    assert (found.exit_on_error, found.exit_timeout_secs, found.strict_readiness) == (True, 30, "auto")
    assert (found.http_thread_count, found.http_max_input_size) == (8, 67108864)
    assert (found.model_load_thread_count, found.model_load_retry_count) == (4, 0)
    assert found.metrics_interval_ms == 2000.0


def test_the_defaults_of_own_options_are_kept() -> None:
    found = settings()
    assert (found.platform, found.shutdown_grace_secs) == ("auto", 2.0)
    assert (found.http_request_timeout_secs, found.http_keepalive_secs, found.log_access) == (60.0, 600.0, "false")


@pytest.mark.parametrize(("is_terminal", "hints"), [(True, "text"), (False, "field")])
def test_a_person_at_a_terminal_gets_hints_in_the_text(
    is_terminal: bool, hints: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: is_terminal)
    with redirect_stdout(shown):
        assert settings().error_hints == hints
        assert settings("--error-hints=off").error_hints == "off"


SAMPLES = {
    "auth_token_scope": "admin",
    "backend_config": "onnxruntime,a=b",
    "cache_config": "local,size=1048576",
    "rate_limit": "execution_count",
    "rate_limit_resource": "R:4:0",
    "trace_config": "rate=5",
    "trace_level": "OFF",
    "metrics_config": "counter_latencies=false",
    "http_restricted_api": "health:a=b",
    "metrics_log": "emf",
    "metrics_log_dimension": "endpoint=e",
    "log_format": "json",
    "log_access": "all",
    "platform": "plain",
    "log_verbose": "3",
    "sagemaker_safe_port_range": "1-65535",
    "vertex_ai_payload": "v2",
    "http_workers": "3",
    "engines": "2",
    "strict_readiness": "true",
    "error_hints": "text",
    "health_body": "json",
    "gpu_missing": "cpu",
    "gpu_memory_per_model": "1000000",
    "http_worker_memory_bytes": "2000000",
    "public_routes": "health,metrics",
    "grpc_restricted_protocol": "health:a=b",
    "grpc_infer_response_compression_level": "low",
}
# The first is needed for all others to be read, the other two have one value that is supported so far.
OPENED_BY = {"azureml_port": "allow-azureml", "sagemaker_port": "allow-sagemaker", "vertex_ai_port": "allow-vertex-ai"}
APART = {"model_repository", "model_control_mode", "load_model"}


def sample(name: str, default: object) -> str:
    if isinstance(default, bool):
        return "false" if default else "true"
    return SAMPLES.get(name, "17" if isinstance(default, int | float) else "some")


@pytest.mark.parametrize("name", [name for name, each in SERVER_OPTIONS.items() if each.flag and name not in APART])
def test_every_option_can_be_set_by_flag_and_by_variable(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = SERVER_OPTIONS[name]
    opened = [f"--{OPENED_BY[name]}=true"] if name in OPENED_BY else []
    if "_use_ssl" in name:
        opened = [f"--allow-{name.partition('_')[0]}=false"]  # an open port would need the files of TLS
    if name.startswith("auth_token"):
        (tmp_path / "tokens").write_text("a-token-of-some-length")
        monkeypatch.setitem(SAMPLES, "auth_token_file", str(tmp_path / "tokens"))
        opened = [f"--auth-token-file={tmp_path / 'tokens'}"] if name == "auth_token_scope" else []
    text = sample(name, each.default)
    by_flag = settings(f"--{each.flag}={text}" if each.takes_value else f"--{each.flag}", *opened)
    by_variable = settings(*opened, **{each.variable: text})
    assert by_flag.value(name) == by_variable.value(name) != each.default
    assert (by_flag.sources[name], by_variable.sources[name]) == ("flag", "environment")


def test_every_option_has_a_field_a_help_text_and_names_of_its_own() -> None:
    without = [each.name for each in fields(ServerSettings) if each.name not in SERVER_OPTIONS]
    assert without == ["sources", "warnings", "without_effect", "platform_values", "open_platforms", "any_layout"]
    assert all(each.help.endswith(".") and each.section for each in SERVER_OPTIONS.values())
    names = [name for each in SERVER_OPTIONS.values() if each.flag for name in each.names]
    variables = [variable for each in SERVER_OPTIONS.values() for variable in each.variables]
    assert len(set(names)) == len(names)
    assert len(set(variables)) == len(variables)


def test_variables_of_triton_and_cuda_are_read() -> None:
    found = settings(TRITONSERVER_DELAY_SCHEDULER="8", TRITON_SERVER_ESCAPE_LOG_MESSAGES="0", CUDA_VISIBLE_DEVICES="")
    assert (found.delay_scheduler, found.log_escape, found.visible_gpus) == (8, False, "")
    assert settings().visible_gpus is None


@pytest.mark.parametrize(("text", "escapes"), [("", True), ("1", True), ("no", True), ("false", True), ("0", False)])
def test_only_0_turns_the_quoting_of_log_messages_off(text: str, escapes: bool) -> None:
    assert settings(TRITON_SERVER_ESCAPE_LOG_MESSAGES=text).log_escape is escapes


def test_tritonservers_counts_below_their_minimum_count_as_the_minimum() -> None:
    found = settings("--exit-timeout-secs=-1", "--model-load-thread-count=0", "--model-load-retry-count=-2")
    assert found.exit_timeout_secs == 0
    assert found.model_load_thread_count == 1
    assert found.model_load_retry_count == 0


def test_defaults_follow_the_http_address_and_the_mounted_directories() -> None:
    assert ServerSettings(http_address="::1").metrics_address == "::1"
    assert ServerSettings(http_address="::1", metrics_address="::").metrics_address == "::"
    assert settings(TRITON_GCS_MOUNT_DIRECTORY="/gcs").model_cache_directory == "/gcs/trident"
    both = {"TRITON_AWS_MOUNT_DIRECTORY": "/aws", "TRITON_GCS_MOUNT_DIRECTORY": "/gcs"}
    assert settings(**both).model_cache_directory == "/aws/trident"
    assert settings("--model-cache-directory=/own", **both).model_cache_directory == "/own"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        settings().http_port = 1  # type: ignore[misc]


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    found = settings("--http-restricted-api=health:X-Key=s3cret", TRIDENT_ID="box")
    assert found.http_restricted_api == ("health:X-Key=s3cret",)
    for shown in (repr(found), str(found), str(found.describe())):
        assert "s3cret" not in shown
        assert "health:X-Key=***" in shown
    assert "server_id='box'" in repr(found)


def test_describe_gives_every_setting_with_its_source() -> None:
    rows = settings("--http-port=1", "--log-info", "off", TRIDENT_METRICS_PORT="2").describe()
    assert len(rows) == len(SERVER_OPTIONS)
    assert SettingRow("http-port", "1", "flag") in rows
    assert SettingRow("log-info", "false", "flag") in rows
    assert SettingRow("metrics-port", "2", "environment") in rows
    assert SettingRow("metrics-address", "0.0.0.0", "default") in rows
    assert SettingRow("TRITONSERVER_DELAY_SCHEDULER", "0", "default") in rows


def test_every_option_is_in_the_help_text() -> None:
    text = serve_usage("all")
    words = set(text.replace("=", " ").replace(",", " ").split())
    for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS):
        for name in each.names if each.flag else ():
            assert f"--{name}" in words
    assert all(each.variable in text for each in SERVER_OPTIONS.values())
    assert max(map(len, (serve_usage() + serve_usage("all") + USAGE + EMULATE_USAGE).split("\n"))) <= 120


def test_the_help_of_serve_has_fifteen_options_and_the_names_of_the_groups() -> None:
    text = serve_usage()
    assert text.count("\n  --") == 15 + 1  # and the groups
    for group in HELP_TOPIC.words:
        assert serve_usage(group)
        assert group in text
    assert serve_usage("http").startswith("HTTP\n  --allow-http=")
    assert "--grpc-port" not in serve_usage("http")


def test_an_unknown_group_names_the_groups() -> None:
    with pytest.raises(BadOption, match="there is no group 'htp'; the groups are model-repository, "):
        serve_usage("htp")
