"""The settings of a server: every option, its defaults, the values that have a form of their own, and the help."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path

import pytest

from trident.adapters.common.options import BadOption, SettingRow
from trident.app.cli import COMMANDS
from trident.app.settings.groups import UNUSED_OPTIONS, BackendSettings, LoggingSettings, split_backend_settings
from trident.app.settings.reading import CloudCache, read_cloud_cache, read_settings
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings, cache_directory
from trident.app.settings.usage import HELP_TOPIC, serve_usage, usage
from trident.core.observability.log import LogOptions
from trident.core.options import RedisOptions, ResourceLimit


def settings(*arguments: str, **environ: str) -> ServerSettings:
    return read_settings(["--model-repository=/models", *arguments], environ)


def refusal(*arguments: str, **environ: str) -> str:
    with pytest.raises(BadOption) as refused:
        settings(*arguments, **environ)
    return str(refused.value)


# --- every option

SAMPLES = {
    "backend_config": "onnxruntime,a=b",
    "cache_config": "local,size=1048576",
    "rate_limit_resource": "R:4:0",
    "trace_config": "rate=5",
    "trace_level": "OFF",
    "metrics_config": "counter_latencies=false",
    "metrics_log_dimension": "endpoint=e",
    "log_access": "all",
    "log_verbose": "3",
    "sagemaker_safe_port_range": "1-65535",
    "engines": "2",
    "http_worker_memory_bytes": "2000000",
    "public_routes": "health,metrics",
    **{"http_restricted_api": "health:a=b", "grpc_restricted_protocol": "health:a=b"},
    "http_workers": "3",
}
# The first is needed for all others to be read, the other two have one value that is supported so far.
OPENED_BY = {"azureml_port": "allow-azureml", "sagemaker_port": "allow-sagemaker", "vertex_ai_port": "allow-vertex-ai"}
APART = {"model_repository", "model_control_mode", "load_model"}


def sample(name: str) -> str:
    """A value that is not the default."""
    each = SERVER_OPTIONS[name]
    if isinstance(each.default, bool):
        return "false" if each.default else "true"
    others = (word for word in each.kind.words if word not in (each.default, "true") and not word.endswith("://"))
    return SAMPLES.get(name) or next(others, "17" if isinstance(each.default, int | float) else "some")


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
    text = sample(name)
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


def test_describe_gives_every_setting_with_its_source() -> None:
    rows = settings("--http-port=1", "--log-info", "off", TRIDENT_METRICS_PORT="2").describe()
    assert len(rows) == len(SERVER_OPTIONS)
    assert SettingRow("http-port", "1", "flag") in rows
    assert SettingRow("log-info", "false", "flag") in rows
    assert SettingRow("metrics-port", "2", "environment") in rows
    assert SettingRow("TRITONSERVER_DELAY_SCHEDULER", "0", "default") in rows


def test_every_option_is_in_the_help_text() -> None:
    text = serve_usage("all")
    words = set(text.replace("=", " ").replace(",", " ").split())
    for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS):
        assert {f"--{name}" for name in each.names if each.flag} <= words
    assert all(each.variable in text for each in SERVER_OPTIONS.values())
    pages = [text, *(usage(command) for command in ("", *COMMANDS))]
    assert max(map(len, "\n".join(pages).split("\n"))) <= 120
    assert "  --measurement-interval=integer    Milliseconds of a level; default 5000; -p.\n" in usage("bench")


def test_the_help_of_serve_has_fifteen_options_and_the_names_of_the_groups() -> None:
    text = serve_usage()
    assert text.count("\n  --") == 15 + 1  # and the groups
    assert [group for group in HELP_TOPIC.words if group not in text or not serve_usage(group)] == []
    assert serve_usage("http").startswith("HTTP\n  --allow-http=")
    assert "--grpc-port" not in serve_usage("http")
    with pytest.raises(BadOption, match="there is no group 'htp'; the groups are model-repository, "):
        serve_usage("htp")


# --- defaults, and values that follow others


@pytest.mark.parametrize(("is_terminal", "hints"), [(True, "text"), (False, "field")])
def test_a_person_at_a_terminal_gets_hints_in_the_text(
    is_terminal: bool, hints: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: is_terminal)
    with redirect_stdout(shown):
        assert settings().error_hints == hints
        assert settings("--error-hints=off").error_hints == "off"


def test_variables_of_triton_and_cuda_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(TRITONSERVER_DELAY_SCHEDULER="8", TRITON_SERVER_ESCAPE_LOG_MESSAGES="0", CUDA_VISIBLE_DEVICES="")
    assert (found.delay_scheduler, found.log_escape, found.visible_gpus) == (8, False, "")
    assert all(settings(TRITON_SERVER_ESCAPE_LOG_MESSAGES=text).log_escape for text in ("", "1", "no", "false"))
    monkeypatch.setenv("TRIDENT_ID", "from the process")
    assert read_settings(["--model-repository=/models"]).server_id == "from the process"


def test_addresses_follow_that_of_http() -> None:
    assert ServerSettings(http_address="::1").metrics_address == "::1"
    assert ServerSettings(http_address="::1", metrics_address="::").metrics_address == "::"
    assert settings("--grpc-address=unix:/run/grpc").services()["GRPC"][:3] == ("unix:/run/grpc", 0, "--grpc-address")


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    found = settings("--http-restricted-api=health:X-Key=s3cret", TRIDENT_ID="box")
    assert found.http_restricted_api == ("health:X-Key=s3cret",)
    for shown in (repr(found), str(found), str(found.describe())):
        assert "s3cret" not in shown
        assert "health:X-Key=***" in shown
    assert "server_id='box'" in repr(found)


# --- the cache of models

VARIABLES = {"TRIDENT_MODEL_CACHE_DIRECTORY": "/cache", "TRIDENT_MODEL_CACHE_BYTES": "5"}
MOUNTS = {"TRITON_AWS_MOUNT_DIRECTORY": "", "TRITON_GCS_MOUNT_DIRECTORY": "/mnt"}


def test_the_cache_is_where_triton_has_room_unless_it_is_named() -> None:
    assert settings(**MOUNTS).model_cache_directory == "/mnt/trident"
    assert settings(**{**MOUNTS, "TRITON_AWS_MOUNT_DIRECTORY": "/aws"}).model_cache_directory == "/aws/trident"
    assert settings("--model-cache-directory=/own", **MOUNTS).model_cache_directory == "/own"
    # The same for commands that have only the options of the cache.
    assert read_cloud_cache({}, MOUNTS).directory == "/mnt/trident"
    assert read_cloud_cache({}, MOUNTS | VARIABLES).directory == "/cache"
    given = {"model-cache-directory": "/mine", "model-cache-bytes": 0}
    assert read_cloud_cache(given, VARIABLES) == CloudCache(directory="/mine", max_bytes=0)
    assert read_cloud_cache({"model-cache-bytes": None}, VARIABLES) == CloudCache(directory="/cache", max_bytes=5)
    with pytest.raises(BadOption, match="TRIDENT_MODEL_CACHE_BYTES"):
        read_cloud_cache({}, {"TRIDENT_MODEL_CACHE_BYTES": "much"})


def test_the_default_cache_is_in_the_home_of_the_user_and_is_not_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = read_cloud_cache({}, {"TRITON_CLOUD_CREDENTIAL_PATH": "/keys"})
    assert (found.path, found.max_bytes, found.credential_path) == (tmp_path / ".cache" / "trident", 64 << 30, "/keys")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["/nowhere/at/all", "relative", "/dev/null"])
def test_the_cache_is_among_the_temporary_files_without_a_home(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    assert cache_directory("") == str(Path(tempfile.gettempdir(), f"trident-{os.getuid()}"))


# --- values with a form of their own


def test_backend_settings_are_split_by_backend_and_the_last_value_counts() -> None:
    texts = ["onnxruntime,threads=1", "default-max-batch-size=8", "onnxruntime,threads=2", "python,path=a=b,c"]
    assert split_backend_settings(texts) == {
        "onnxruntime": {"threads": "2"},
        "": {"default-max-batch-size": "8"},
        "python": {"path": "a=b,c"},
    }
    found = BackendSettings(backend_config=("onnxruntime,a=b",), backend_directory="/backends").backend_settings
    assert found == {"": {"backend-directory": "/backends"}, "onnxruntime": {"a": "b"}}
    found = BackendSettings(backend_config=("backend-directory=/mine",)).backend_settings
    assert found == {"": {"backend-directory": "/mine"}}


CACHE = "cache-config"


@pytest.mark.parametrize(
    ("option", "texts", "reason"),
    [
        ("backend-config", " a a,b ,a=b a,=b a,b= =b a=", "--backend-config option format is"),
        ("rate-limit-resource", "R R: :4 R:4: R:4:0:1 R:x R:-1 R:4:-2 R:99999999999", "--rate-limit-resource"),
        ("rate-limit", "on", "'on' is not one of execution_count, off"),
        ("metrics-config", "counter_latencies", "--metrics-config option format is"),
        (CACHE, "size=10", "--cache-config option format is '<cache name>,<setting>=<value>'. Got size=10"),
        (CACHE, "redis,hosts", "'<cache name>,<setting>=<value>'. Got redis,..."),
        (CACHE, "memcached,host=a", "there is no response cache 'memcached': use local,size=<bytes> or redis,"),
        (CACHE, "redis,retries=1", "'redis' has no setting 'retries': it has host, port, user, password, db, "),
        (CACHE, "redis,port=70000", "the setting 'port' of the response cache 'redis': Provided option value"),
        (CACHE, "local,room=1", "the response cache 'local' has no setting 'room': use local,size=<bytes>"),
        (CACHE, f"local,size=0 local,size=-1 local,size=1k local,size=1.5 local,size={'9' * 30}", "a number of bytes"),
    ],
)
def test_a_malformed_value_is_refused(option: str, texts: str, reason: str) -> None:
    for text in texts.split(" "):
        assert reason in refusal(f"--{option}={text}")


def test_the_log_and_the_metrics_have_their_options() -> None:
    found = LoggingSettings(log_verbose=1, log_info=False, log_format="json", log_file="x", log_escape=False)
    assert found.log_options == LogOptions(verbose=1, info=False, format="json", file="x", escape=False)
    texts = ["--metrics-config=counter_latencies=true", "--metrics-config=summary_quantiles=0.5:0.05,0.9:0.01"]
    found_metrics = settings(*texts, "--metrics-config=counter_latencies=false").metrics_settings
    assert found_metrics == {"counter_latencies": "false", "summary_quantiles": "0.5:0.05,0.9:0.01"}
    both = settings(TRIDENT_METRICS_CONFIG="summary_latencies=true;histogram_latencies=false").metrics_settings
    assert both == {"summary_latencies": "true", "histogram_latencies": "false"}
    assert settings("--metrics-log-dimension=d1=a=b").metrics_log_dimensions == {"d1": "a=b"}


ON, R, S = "--rate-limit=execution_count", "--rate-limit-resource=R:4", "--rate-limit-resource=S:1:0"


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ([], None),
        (["--rate-limit=off", R], None),
        ([R], None),
        ([ON], ()),
        ([ON, R, S], (ResourceLimit("R", 4), ResourceLimit("S", 1, 0))),
    ],
)
def test_the_limits_of_resources(options: list[str], limits: tuple[ResourceLimit, ...] | None) -> None:
    assert settings(*options).resource_limits == limits


def test_the_last_size_of_the_response_cache_counts() -> None:
    assert settings("--cache-config=local,size=1", "--cache-config=local,size=2").response_cache_bytes == 2
    assert settings("--response-cache-byte-size=4096").response_cache_bytes == 4096


def redis(*texts: str, **environ: str) -> RedisOptions | None:
    pytest.importorskip("redis")
    return settings(*(f"--cache-config=redis,{text}" for text in texts), **environ).redis_options


CREDENTIALS = {"TRITONCACHE_REDIS_USERNAME": "me", "TRITONCACHE_REDIS_PASSWORD": "secret"}


def test_redis_takes_its_settings_one_by_one_or_together_and_its_user_from_the_environment() -> None:
    expected = RedisOptions(host="cache", port=6380, user="me", password="a,b=c", db=2)
    assert redis("host=cache,port=6380,user=me,password=a,b=c,db=2,wait_timeout=10") == expected
    apart = ["host=other", "host=cache", "port=6380", "user=me", "password=a,b=c", "db=2"]
    assert redis(*apart) == expected
    assert redis("host=cache,port=1", **CREDENTIALS) == RedisOptions(host="cache", port=1, user="me", password="secret")
    overridden = redis("host=cache,port=1,password=other", **CREDENTIALS)
    assert overridden == RedisOptions(host="cache", port=1, user="me", password="other")


def test_a_password_is_never_shown() -> None:
    pytest.importorskip("redis")
    found = settings("--cache-config=redis,host=cache,port=1,password=secret1", **CREDENTIALS)
    shown = repr(found) + repr(found.describe()) + repr(found.redis_options)
    assert "secret" not in shown.replace("redis_password", "")


def test_a_missing_package_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [path for path in sys.path if "site-packages" not in path])
    monkeypatch.delitem(sys.modules, "redis", raising=False)
    importlib.invalidate_caches()
    assert "pip install 'trident-inference[redis]'" in refusal("--cache-config=redis,host=cache,port=1")
