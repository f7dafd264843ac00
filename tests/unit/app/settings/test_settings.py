"""The settings of a server: every option, its defaults, the values that have a form of their own, the help, the
combinations that end the start or are warned of, and tracing."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from trident.adapters.common.options import BadOption, SettingRow
from trident.adapters.sagemaker.platform import SageMakerSettings
from trident.app.settings.groups import UNUSED_OPTIONS, BackendsSettings, LoggingSettings, split_backend_settings
from trident.app.settings.reading import read_settings, tls_files, with_repositories
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings, cache_directory
from trident.app.settings.usage import HELP_TOPIC, serve_usage
from trident.core.observability.log import LogOptions
from trident.core.observability.tracing.trace import TraceMode, TraceOptions, TraceSettings
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
    "model_memory": "4096",
    "http_worker_memory_bytes": "2000000",
    "public_routes": "health,metrics",
    **{"http_restricted_api": "health:a=b", "grpc_restricted_protocol": "health:a=b"},
    "http_workers": "3",
    "payload_log": "https://collector/events",
    "payload_log_sample": "0.5",
}
PUBLIC_KEY = """\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE4j9uMRdMd6t9OsE7hdRULWVuh4cZ
5sVj/hh3T70YruOTtVeByuVpTaIEaacOeOZpk+KS901vgPtTgtqCI7XG4Q==
-----END PUBLIC KEY-----
"""
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
    if name in ("model_memory", "model_idle_secs"):
        opened = ["--model-control-mode=demand"]
    if name.startswith("payload_log_"):
        opened = [f"--payload-log={tmp_path}"]
    if "_use_ssl" in name:
        opened = [f"--allow-{name.partition('_')[0]}=false"]  # an open port would need the files of TLS
    if name.startswith("auth_token"):
        (tmp_path / "tokens").write_text("a-token-of-some-length")
        monkeypatch.setitem(SAMPLES, "auth_token_file", str(tmp_path / "tokens"))
        opened = [f"--auth-token-file={tmp_path / 'tokens'}"] if name == "auth_token_scope" else []
    if name == "model_signature":
        (tmp_path / "key").write_text(PUBLIC_KEY)
        monkeypatch.setitem(SAMPLES, name, str(tmp_path / "key"))
    text = sample(name)
    by_flag = settings(f"--{each.flag}={text}" if each.takes_value else f"--{each.flag}", *opened)
    by_variable = settings(*opened, **{each.variable: text})
    assert by_flag.value(name) == by_variable.value(name) != each.default
    assert (by_flag.sources[name], by_variable.sources[name]) == ("flag", "environment")


def test_every_option_has_a_field_a_help_text_and_unique_names() -> None:
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
    assert max(map(len, text.split("\n"))) <= 120


def test_the_help_of_serve_names_the_groups() -> None:
    text = serve_usage()
    assert [group for group in HELP_TOPIC.words if group not in text or not serve_usage(group)] == []
    assert serve_usage("http").startswith("HTTP\n  --allow-http=")
    assert "--grpc-port" not in serve_usage("http")
    with pytest.raises(BadOption, match="there is no group 'htp'; the groups are model-repository, "):
        serve_usage("htp")


# --- defaults, and values that follow others


@pytest.mark.parametrize(("is_terminal", "hints"), [(True, "text"), (False, "field")])
def test_error_hints_default_to_text_on_a_terminal(
    is_terminal: bool, hints: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: is_terminal)
    with redirect_stdout(shown):
        assert settings().error_hints == hints
        assert settings("--error-hints=off").error_hints == "off"


def test_directly_served_model_has_the_console_unless_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_console(*arguments: str, around: str = "/tmp/made") -> bool:
        return read_settings(with_repositories(arguments, lambda _: around)).console

    assert has_console("net.onnx")
    assert not has_console("net.onnx", "--console=false")
    assert not has_console("models", around="models")
    monkeypatch.setenv("TRIDENT_CONSOLE", "false")
    assert not has_console("net.onnx")


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

MOUNTS = {"TRITON_AWS_MOUNT_DIRECTORY": "", "TRITON_GCS_MOUNT_DIRECTORY": "/mnt"}


def test_cache_directory_defaults_to_tritons_mount() -> None:
    assert settings(**MOUNTS).model_cache_directory == "/mnt/trident"
    assert settings(**{**MOUNTS, "TRITON_AWS_MOUNT_DIRECTORY": "/aws"}).model_cache_directory == "/aws/trident"
    assert settings("--model-cache-directory=/own", **MOUNTS).model_cache_directory == "/own"


@pytest.mark.parametrize("home", ["/nowhere/at/all", "relative", "/dev/null"])
def test_cache_directory_is_temporary_without_a_home(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    plugins = split_backend_settings(["onnxruntime,plugin=a=/a.so", "onnxruntime,plugin=b=/b=b.so", "mine,plugin=c"])
    assert plugins == {"onnxruntime": {"plugin=a": "/a.so", "plugin=b": "/b=b.so"}, "mine": {"plugin": "c"}}
    found = BackendsSettings(backend_config=("onnxruntime,a=b",), backend_directory="/backends").backend_settings
    assert found == {"": {"backend-directory": "/backends"}, "onnxruntime": {"a": "b"}}
    found = BackendsSettings(backend_config=("backend-directory=/mine",)).backend_settings
    assert found == {"": {"backend-directory": "/mine"}}


CACHE = "cache-config"


@pytest.mark.parametrize(
    ("option", "texts", "reason"),
    [
        ("backend-config", " a a,b ,a=b a,=b a,b= =b a=", "--backend-config option format is"),
        ("rate-limit-resource", "R R: :4 R:4: R:4:0:1 R:x R:-1 R:4:-2 R:99999999999", "--rate-limit-resource"),
        ("rate-limit", "on", "'on' is not one of execution_count, off"),
        ("backend-config", "default-max-batch-size=x onnxruntime,default-max-batch-size=1.5", "Invalid option value"),
        ("backend-config", "default-max-batch-size=-1", "value is out of bound"),
        ("metrics-config", "counter_latencies", "--metrics-config option format is"),
        ("metrics-config", "latencies=true", "there is no setting 'latencies', only counter_latencies, histogram_"),
        ("metrics-config", "summary_latencies=yes", "invalid value for bool option: yes"),
        ("metrics-config", "summary_quantiles=0.5:0.05,0.1:0.0.1", "Invalid option: [0.1:0.0.1]. Expected format is"),
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
    both = settings(TRIDENT_METRICS_CONFIG="summary_latencies=ON;histogram_latencies=0").metrics_settings
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
def test_rate_limit_resources_are_parsed(options: list[str], limits: tuple[ResourceLimit, ...] | None) -> None:
    assert settings(*options).resource_limits == limits


def test_the_last_size_of_the_response_cache_counts() -> None:
    assert settings("--cache-config=local,size=1", "--cache-config=local,size=2").response_cache_bytes == 2
    assert settings("--response-cache-byte-size=4096").response_cache_bytes == 4096


def redis(*texts: str, **environ: str) -> RedisOptions | None:
    return settings(*(f"--cache-config=redis,{text}" for text in texts), **environ).redis_options


CREDENTIALS = {"TRITONCACHE_REDIS_USERNAME": "me", "TRITONCACHE_REDIS_PASSWORD": "secret"}


def test_redis_settings_are_read_from_options_and_variables() -> None:
    expected = RedisOptions(host="cache", port=6380, user="me", password="a,b=c", db=2)
    assert redis("host=cache,port=6380,user=me,password=a,b=c,db=2,wait_timeout=10") == expected
    apart = ["host=other", "host=cache", "port=6380", "user=me", "password=a,b=c", "db=2"]
    assert redis(*apart) == expected
    assert redis("host=cache,port=1", **CREDENTIALS) == RedisOptions(host="cache", port=1, user="me", password="secret")
    overridden = redis("host=cache,port=1,password=other", **CREDENTIALS)
    assert overridden == RedisOptions(host="cache", port=1, user="me", password="other")


def test_a_password_is_never_shown() -> None:
    found = settings("--cache-config=redis,host=cache,port=1,password=secret1", **CREDENTIALS)
    shown = repr(found) + repr(found.describe()) + repr(found.redis_options)
    assert "secret" not in shown.replace("redis_password", "")


def test_a_missing_package_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [path for path in sys.path if "site-packages" not in path])
    monkeypatch.delitem(sys.modules, "redis", raising=False)
    importlib.invalidate_caches()
    assert "pip install '.[redis]'" in refusal("--cache-config=redis,host=cache,port=1")


# --- combinations that end the start or are warned of


MUTUAL = "--grpc-use-ssl-mutual=true --grpc-server-cert=a --grpc-server-key=b"
TLS = "--grpc-use-ssl=true --grpc-server-cert=/none --grpc-server-key=/none"
GROUPS = "health, metadata, inference, shared-memory, model-config, model-repository, statistics, trace, logging"
FORM = "it takes <group>[,<group>...]:<header>=<value>"
NAMESPACE, DIMENSION = "--metrics-log-namespace", "--metrics-log-dimension"


def read(line: str) -> ServerSettings:
    return settings(*line.split())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--model-control-mode=some", "'some' is not one of none, poll, explicit"),
        ("--load-model=a", "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        ("--model-control-mode=explicit --load-model=a --load-model=*", "'*' must be the ONLY startup model"),
        ("--model-config-name=", "Error: empty argument for --model-config-name"),
        ("--model-config-name=../x", "'../x' is a path: name a file in the folder configs"),
        ("--trace-config=triton,file=/nowhere/traces", "/nowhere/traces is not a file that this user can write"),
        ("--trace-file=/", '--trace-config triton,file".\n/ is not a file that this user can write'),
        ("--payload-log-sample=0.1", 'Bad option: "--payload-log-sample".\nit needs --payload-log'),
        ("--payload-log-sample=2", "Provided option value is out of bound. Got 2"),
        ("--payload-log=/dev/null/logs", "/dev/null/logs is not a folder to which this user can write"),
        ("--payload-log=https://user:s3cret@host/", "expected http[s]://host[:port][/path], without credentials"),
        ("--payload-log=ftp://host/logs", "unknown storage ftp:// in a payload log; give a folder, s3://, gs://"),
        ("--single-model=", 'Bad option: "--single-model".\nthe model\'s name is missing'),
        ("--single-model=a/b", "a name with a slash or a NUL cannot be the name of a model"),
        ("--single-model=a --model-repository=/other", "it names the model of one repository, but several are given"),
        ("--http-address=unix:/run/a", 'Bad option: "--http-address".\nit is an address of the network: only --grpc-'),
        ("--metrics-address=unix:/run/a", 'Bad option: "--metrics-address".\nit is an address of the network: only'),
        ("--http-port=0", "cannot listen to HTTP requests at port 0: choose the port that clients use"),
        ("--http-max-input-size=-1", "Error: --http-max-input-size must be greater than 0."),
        ("--http-port=8002", "listen to HTTP requests and metrics requests at the same address and port 0.0.0.0:8002"),
        ("--allow-sagemaker=true --sagemaker-port=8000", "HTTP requests and SageMaker requests at the same address"),
        ("--grpc-infer-thread-count=1", "--grpc_infer_thread_count. Must be in the range 2 to 128."),
        ("--grpc-use-ssl=true", 'Bad option: "--grpc-server-cert".\n--grpc-use-ssl needs this file'),
        (MUTUAL, 'Bad option: "--grpc-root-cert".\n--grpc-use-ssl-mutual needs this file'),
        (TLS, "the certificate '/none' with the key '/none' cannot be used: No such file or directory (both are files"),
        ("--grpc-restricted-protocol=helth:k=v", f"unknown restricted protocol 'helth' (one of {GROUPS})"),
        ("--grpc-restricted-protocol=health:secret", FORM),
        ("--http-restricted-api=helth:k=v", f"unknown restricted api 'helth' (one of {GROUPS})"),
        ("--http-restricted-api=health:a=b --http-restricted-api=trace,health:c=d", "in multiple config groups"),
        ("--http-header-forward-pattern=(", "is not a regular expression: '('"),
        ("--allow-sagemaker=true --sagemaker-safe-port-range=8000-8001", "metrics requests at port 8002, allowed port"),
        ("--allow-sagemaker=true --sagemaker-safe-port-range=8001-8002", "HTTP requests at port 8000, allowed port"),
        ("--sagemaker-safe-port-range=2-1", "the ports of a range go up, from 0 to 65535, not '2-1'"),
        ("--allow-http=false --allow-grpc=false --allow-metrics=false", "leave nothing to serve."),
        ("--sagemaker-port=9000", 'Bad option: "--sagemaker-port".\nthis port is closed: add --allow-sagemaker=true'),
        ("--cache-config=redis,host=cache", "Failed to initialize RedisCache, didn't specify address"),
        ("--cache-config=redis,host=cache,port=1,cacert=/nowhere.pem", "there is no /nowhere.pem"),
        ("--cache-config=local,size=1 --cache-config=redis,host=a,port=1", "found multiple cache configurations"),
        ("--cache-config=local,size=1 --response-cache-byte-size=1", "Incompatible flags --response-cache-byte-size"),
        ("--public-routes=helth", "--public-routes: "),
        ("--public-routes=health,none", "--public-routes: "),
        ("--auth-token-scope=all", "without --auth-token-file no token is asked for"),
        ("--auth-token-file=/none", 'Bad option: "--auth-token-file".\n'),
        ("--reload --model-control-mode=explicit", "a request loads a model again, not a change"),
        ("--engines=2 --http-workers=0", "--http-workers=0 leaves none"),
        ("--metrics-log=json", "'json' is not one of none, emf, gcp"),
        (f"{NAMESPACE}=", "it takes 1 to 255 printable ASCII characters that do not begin with a colon or AWS/"),
        (f"{NAMESPACE}=:a", "do not begin with a colon or AWS/"),
        (f"{NAMESPACE}=AWS/SageMaker", "do not begin with a colon or AWS/"),
        (f"{DIMENSION}=1st=e", "'1st' cannot be a name"),
        (f"{DIMENSION}=request_success=e", "'request_success' is the name of a metric or of another dimension"),
        (f"{DIMENSION}=endpoint=é", "the value of 'endpoint' takes 1 to 255 printable ASCII characters"),
        (" ".join(f"{DIMENSION}=d{number}=x" for number in range(29)), "at most 28 dimensions are possible"),
    ],
)
def test_invalid_settings_end_the_start(line: str, text: str) -> None:
    assert text in refusal(*line.split())


@pytest.mark.parametrize(
    "line",
    [
        "--allow-sagemaker=true --sagemaker-safe-port-range=8000-8002 --sagemaker-port=9",
        "--sagemaker-port=9000 --allow-sagemaker=false",
        "--vertex-ai-port=9000 --allow-vertex-ai=false",
        "--grpc-address=unix:/run/grpc --http-port=8001",
        "--allow-grpc=false --grpc-use-ssl=true",
        "--allow-http=false --http-use-ssl=true",
    ],
)
def test_valid_combinations_of_settings_are_accepted(line: str) -> None:
    assert read(line).services()


@pytest.mark.parametrize("value", ["health:s3cret", "health=s3cret", "unknown:key=s3cret"])
def test_a_refused_secret_is_not_repeated(value: str) -> None:
    assert "s3cret" not in refusal(f"--http-restricted-api={value}")


@pytest.mark.parametrize("arguments", [[], ["--model-repository="]])
def test_a_missing_model_repository_is_refused(arguments: list[str]) -> None:
    with pytest.raises(BadOption, match=r"^--model-repository must be specified\n"):
        read_settings(arguments, {})
    assert read_settings(arguments, {}, needs_repository=False).http_port == 8000


@pytest.mark.parametrize(
    ("content", "line", "text"),
    [
        ("", "", "cannot be used: it has no token (one token a line"),
        ("a-token-of-some-length", "--allow-http=false --allow-grpc=false", "both are closed"),
    ],
)
def test_unusable_token_file_ends_the_start(content: str, line: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(content)
    assert text in refusal(f"--auth-token-file={tmp_path / 'tokens'}", *line.split())


DEPRECATED = "'--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead."
FILES = "--{0}-server-cert=/a --{0}-server-key=/b"


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("--strict-model-config=true", [DEPRECATED]),
        ("--strict-model-config=false", [DEPRECATED]),
        ("--disable-auto-complete-config", []),
        ("--disable-auto-complete-config --strict-model-config=false", [DEPRECATED, "is overridden by"]),
        (FILES.format("grpc"), ["without --grpc-use-ssl=true the gRPC port has no TLS, and --grpc-server-cert, --gr"]),
        (FILES.format("http"), ["without --http-use-ssl=true the HTTP port has no TLS, and --http-server-cert, --ht"]),
        ("--rate-limit-resource=R:1", ["without --rate-limit=execution_count, --rate-limit-resource has no effect"]),
        ("--trace-rate=2 --trace-count=3 --trace-config=rate=9", ["'--trace-rate' is overridden by '--trace-config'"]),
    ],
)
def test_questionable_settings_warn(line: str, texts: list[str]) -> None:
    found = read(line)
    assert [text in warning for text, warning in zip(texts, found.warnings, strict=True)] == [True] * len(texts)
    assert found.disable_auto_complete_config == (line.endswith("=true") or "auto-complete" in line)
    assert tls_files(found, "grpc") is None


def test_platform_ports_without_tokens_warn(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("a-token-of-some-length")
    (warning,) = read(f"--auth-token-file={tmp_path / 'tokens'} --allow-sagemaker=true").warnings
    assert "on the port of SageMaker the platform says who may call" in warning


# --- tracing


def config(*texts: str, **fields: Any) -> TraceOptions:
    return ServerSettings(trace_config=texts, **fields).trace_options


def test_tracing_is_off_by_default() -> None:
    assert read("").trace_options == TraceOptions()
    assert TraceOptions().start == TraceSettings(levels=(), rate=1000, count=-1, frequency=0)
    assert read("--trace-level=OFF --trace-config=level=TIMESTAMPS").trace_options.start.levels == ()
    assert config("level=OFF", "level=TIMESTAMPS", "triton,file=/t").start.levels == ("TIMESTAMPS",)


def test_the_settings_of_the_triton_mode_and_the_older_options() -> None:
    levels = ("level=TENSORS", "level=timestamps")
    found = config("mode=Triton", *levels, "rate=5", "count=7", "triton,file=/t", "triton,log-frequency=3")
    assert found.start == TraceSettings(levels=("TIMESTAMPS", "TENSORS"), rate=5, count=7, frequency=3)
    assert (found.mode, found.file) == (TraceMode.TRITON, "/t")
    older = "--trace-file=/t --trace-level=MAX --trace-rate=2 --trace-count=3 --trace-log-frequency=4"
    assert read(older).trace_options.start == TraceSettings(levels=("TIMESTAMPS",), rate=2, count=3, frequency=4)
    found = read(f"{older} --trace-config=rate=9 --trace-config=triton,file=/new").trace_options
    assert (found.start.rate, found.file, found.start.count) == (9, "/new", 3)


def test_opentelemetry_has_its_own_settings() -> None:
    own = ("url=http://c:1/v1/traces", "resource=a=b=c", "resource=service.name=mine", "bsp_max_queue_size=9")
    given = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=0", *(f"opentelemetry,{each}" for each in own))
    found = config(*given, otel_queue_size="100", otel_schedule_delay="200")
    assert found.export.url == "http://c:1/v1/traces"
    assert found.export.resource == {"service.name": "mine", "a": "b=c"}
    assert (found.export.queue_size, found.export.delay_ms, found.export.batch_size) == (9, 200, 512)
    batching = ["bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"]
    assert list(found.shown) == ["url", "resource", *batching]
    assert found.shown["bsp_schedule_delay"] == "200"


@pytest.mark.parametrize(
    ("texts", "source", "reason"),
    [
        ("rate", "", "option format is"),
        (",rate=1", "", "option format is"),
        ("speed=1", "", "there is no setting 'speed'"),
        ("triton,rate=1", "", "there is no setting 'triton,rate'"),
        ("rate=x", " rate", "Invalid option value. Got x"),
        ("count=-2", " count", "out of bound"),
        ("level=HIGH", " level", "invalid value for trace level option: HIGH"),
        ("mode=x", " mode", 'trace mode option: x. Available options are "triton" and "opentelemetry"'),
        ("level=TIMESTAMPS", "", "trace file name is not given"),
        ("opentelemetry,resource=x", " opentelemetry,resource", "it takes <key>=<value>"),
        ("opentelemetry,bsp_schedule_delay=0", " opentelemetry,bsp_schedule_delay", "out of bound"),
        ("level=TIMESTAMPS rate=0 triton,file=/t", " rate", "sample rate must be non-zero"),
        ("mode=opentelemetry level=TENSORS", " level", "it cannot send tensors"),
    ],
)
def test_invalid_trace_settings_are_refused(texts: str, source: str, reason: str) -> None:
    with pytest.raises(BadOption) as refused:
        config(*texts.split())
    assert str(refused.value).startswith(f'Bad option: "--trace-config{source}".\n')
    assert reason in str(refused.value)
    with pytest.raises(BadOption, match="OTEL_BSP_SCHEDULE_DELAY"):
        config("mode=opentelemetry", otel_schedule_delay="soon")


# --- platforms: SageMaker's container, and variables of two


def opened(found: ServerSettings, name: str) -> Any:
    """The settings of a platform whose port is open; None if it is closed."""
    return next((own for platform, own in found.open_platforms.items() if platform.name == name), None)


def sagemaker(found: ServerSettings) -> SageMakerSettings:
    own = opened(found, "sagemaker")
    assert isinstance(own, SageMakerSettings)
    return own


class Container:
    """A SageMaker container, with its model directories in a folder."""

    def __init__(self, tmp_path: Path) -> None:
        self.model_root, self.models_root = tmp_path / "model", tmp_path / "models"
        roots = {"MODEL_ROOT": self.model_root, "MODELS_ROOT": self.models_root}
        self.environ = {f"TRIDENT_SAGEMAKER_{name}": str(path) for name, path in roots.items()}

    def holds(self, *paths: str) -> None:
        for path in paths:
            (self.model_root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.model_root / path).touch()

    def settings(self, *arguments: str, **environ: str) -> ServerSettings:
        return read_settings(arguments, {**self.environ, **environ})

    def refusal(self, *arguments: str, **environ: str) -> str:
        with pytest.raises(BadOption) as refusal:
            self.settings(*arguments, **environ)
        return str(refusal.value)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_kserve_name_is_the_default_name_of_a_single_model() -> None:
    def found(*arguments: str) -> tuple[str, bool]:
        given = settings(*arguments, INFERENCE_SERVICE_NAME="digits")
        return given.single_model, given.any_layout

    assert found() == ("digits", True)
    assert found("--single-model=cat") == ("cat", True)
    assert found("--model-repository=/other") == ("", False)


def test_sagemaker_is_detected_by_its_directory(container: Container) -> None:
    container.holds("cat/1/model.onnx", "code/inference.py")
    found = container.settings()
    assert found.platform == "sagemaker"
    assert found.sources["platform"] == str(container.model_root)
    assert found.model_repository == (str(container.model_root),)
    assert (found.any_layout, found.model_control_mode, found.load_model) == (True, "explicit", ("cat",))
    assert {name: each[:2] for name, each in found.services().items()} == {"SageMaker": ("0.0.0.0", 8080)}
    assert (found.exit_timeout_secs, found.shutdown_grace_secs) == (23, 0.0)
    assert (sagemaker(found).default_model, sagemaker(found).sources) == ("cat", {"default_model": "platform"})
    assert SettingRow("allow-http", "false", "platform") in found.describe()


def test_sagemaker_variable_selects_the_platform_despite_a_given_repository(container: Container) -> None:
    found = container.settings("--model-repository=/models", SAGEMAKER_REGION="eu-west-1")
    assert (found.platform, found.sources["platform"]) == ("sagemaker", "SAGEMAKER_REGION")
    assert (found.model_repository, found.any_layout, found.load_model) == (("/models",), False, ("*",))
    assert container.settings("--model-repository=/models", SAGEMAKER_BATCH="").platform == "auto"


def test_flags_override_variables_which_override_the_platform(container: Container) -> None:
    container.holds("model.onnx")
    environ = {"SAGEMAKER_BIND_TO_PORT": "1", "SAGEMAKER_TRITON_LOG_VERBOSE": "true"}
    found = container.settings(**environ)
    assert (sagemaker(found).port, found.sources["sagemaker_port"]) == (1, "SAGEMAKER_BIND_TO_PORT")
    assert (found.log_verbose, found.sources["log_verbose"]) == (1, "SAGEMAKER_TRITON_LOG_VERBOSE")
    additional = {**environ, "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--log-verbose=2 --id='a b' --sagemaker-port=2"}
    found = container.settings(**additional)
    assert (found.log_verbose, found.server_id, sagemaker(found).port) == (2, "a b", 2)
    assert found.sources["server_id"] == "SAGEMAKER_TRITON_ADDITIONAL_ARGS"
    found = container.settings(**additional, TRIDENT_SAGEMAKER_PORT="3")
    assert (sagemaker(found).port, found.sources["sagemaker_port"]) == (3, "environment")
    found = container.settings("--sagemaker-port=4", "--allow-http", "true", **additional, TRIDENT_SAGEMAKER_PORT="3")
    assert (sagemaker(found).port, found.sources["sagemaker_port"]) == (4, "flag")
    assert sagemaker(found).port == 4
    assert found.services().keys() == {"HTTP", "SageMaker"}


def test_load_model_adds_to_the_default_model(container: Container) -> None:
    container.holds("cat/1/model.onnx", "dog/1/model.onnx", "cow/1/model.onnx")
    named = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "dog"}
    assert container.settings(**named).load_model == ("dog",)
    more = "--load-model=cat --load-model=dog"
    assert container.settings(**named, SAGEMAKER_TRITON_ADDITIONAL_ARGS=more).load_model == ("dog", "cat")
    assert container.settings("--load-model=*", **named).load_model == ("*",)
    found = container.settings("--model-control-mode=none", **named)
    assert found.load_model == ()
    assert sagemaker(found).default_model == "dog"


def test_multi_model_mode_has_no_repository_and_no_startup_model(container: Container) -> None:
    found = container.settings(SAGEMAKER_MULTI_MODEL="true")
    assert (found.model_repository, found.load_model, found.model_control_mode) == ((), (), "demand")
    assert (
        container.settings(SAGEMAKER_MULTI_MODEL="true", TRIDENT_ENGINES="2", TRIDENT_MODEL_MEMORY="1GiB").engines
        == "2"
    )
    assert (sagemaker(found).models_root, sagemaker(found).ping_mode) == (str(container.models_root), "live")
    assert container.refusal("--model-control-mode=none", SAGEMAKER_MULTI_MODEL="true").startswith(
        'Bad option: "--model-control-mode".'
    )


def test_platform_variables_are_applied_refused_or_warned_of(container: Container) -> None:
    container.holds("model.onnx")
    names = ("SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE", "SAGEMAKER_TRITON_LOG_INF")
    found = container.settings(**dict.fromkeys(names, "1"))
    assert found.without_effect == ("SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE",)
    assert found.warnings == ("unknown variable SAGEMAKER_TRITON_LOG_INF; did you mean SAGEMAKER_TRITON_LOG_INFO?",)
    nonsense = container.refusal(SAGEMAKER_TRITON_ADDITIONAL_ARGS="--nonsense=1")
    assert nonsense.endswith('ADDITIONAL_ARGS".\nBad option: "--nonsense".\nunknown option; --help lists the options')
    bad = container.refusal(SAGEMAKER_TRITON_LOG_INFO="x")
    assert bad.endswith("invalid value for bool option: x; --log-info takes true|false")
    closed = container.refusal(SAGEMAKER_SAFE_PORT_RANGE="1-2", SAGEMAKER_TRITON_ALLOW_METRICS="true")
    assert "metrics requests at port 8002, allowed port range is [1, 2]" in closed


CONTAINER = {
    "AIP_MODE": "PREDICTION",
    "AIP_HTTP_PORT": "8081",
    "AIP_PREDICT_ROUTE": "/v1/endpoints/12/deployedModels/34:predict",
    "AIP_HEALTH_ROUTE": "/v1/endpoints/12/deployedModels/34",
    "AIP_STORAGE_URI": "gs://bucket/artifacts",
}


def test_variables_of_two_platforms_are_refused(tmp_path: Path) -> None:
    both = {**CONTAINER, "SAGEMAKER_REGION": "eu-west-1"}
    with pytest.raises(BadOption) as refused:
        read_settings([], both)
    assert str(refused.value) == (
        "the environment has SAGEMAKER_REGION, which shows SageMaker, and AIP_MODE, which shows Vertex AI: choose one "
        "with --platform=sagemaker or --platform=vertex"
    )
    assert read_settings(["--platform=vertex"], both).services().keys() == {"Vertex AI", "metrics"}
    # A port that the platform closes may be named.
    found = read_settings(["--http-port=9000"], {**CONTAINER, "TRIDENT_SAGEMAKER_MODEL_ROOT": str(tmp_path)})
    assert found.platform == "vertex"
