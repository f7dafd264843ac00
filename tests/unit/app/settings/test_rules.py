"""Combinations of settings that end the start or are warned of, and what `--trace-config` and its older forms mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trident.adapters.common.options import BadOption
from trident.app.settings.reading import read_settings, tls_files
from trident.app.settings.server import ServerSettings
from trident.core.observability.tracing.trace import TraceMode, TraceOptions, TraceSettings

MUTUAL = "--grpc-use-ssl-mutual=true --grpc-server-cert=a --grpc-server-key=b"
TLS = "--grpc-use-ssl=true --grpc-server-cert=/none --grpc-server-key=/none"
GROUPS = "health, metadata, inference, shared-memory, model-config, model-repository, statistics, trace, logging"
FORM = "it takes <group>[,<group>...]:<header>=<value>"
NAMESPACE, DIMENSION = "--metrics-log-namespace", "--metrics-log-dimension"


def read(line: str, **environ: str) -> ServerSettings:
    return read_settings(["--model-repository=/models", *line.split()], environ)


def refusal(line: str) -> str:
    with pytest.raises(BadOption) as error:
        read(line)
    return str(error.value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--model-control-mode=some", "'some' is not one of none, poll, explicit"),
        ("--load-model=a", "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        ("--model-control-mode=explicit --load-model=a --load-model=*", "'*' must be the ONLY startup model"),
        ("--model-config-name=", "Error: empty argument for --model-config-name"),
        ("--single-model=", 'Bad option: "--single-model".\nthe model\'s name is missing'),
        ("--single-model=a/b", "a name with a slash or a NUL cannot be the name of a model"),
        ("--single-model=a --model-repository=/other", "it names the model of one repository, but several are given"),
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
    assert text in refusal(line)


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
def test_what_only_looks_invalid_passes(line: str) -> None:
    assert read(line).services()


@pytest.mark.parametrize("value", ["health:s3cret", "health=s3cret", "unknown:key=s3cret"])
def test_a_refused_secret_is_not_repeated(value: str) -> None:
    assert "s3cret" not in refusal(f"--http-restricted-api={value}")


@pytest.mark.parametrize("arguments", [[], ["--model-repository="]])
def test_a_missing_model_repository_is_refused(arguments: list[str]) -> None:
    with pytest.raises(BadOption, match=r"^--model-repository must be specified$"):
        read_settings(arguments, {})
    assert read_settings(arguments, {}, needs_repository=False).http_port == 8000


@pytest.mark.parametrize(
    ("content", "line", "text"),
    [
        ("", "", "cannot be used: it has no token (one token a line"),
        ("a-token-of-some-length", "--allow-http=false --allow-grpc=false", "both are closed"),
    ],
)
def test_tokens_that_nobody_could_show_end_the_start(content: str, line: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(content)
    assert text in refusal(f"--auth-token-file={tmp_path / 'tokens'} {line}")


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
        ("--trace-rate=2 --trace-count=3 --trace-config=rate=9", ["'--trace-rate' is overridden by '--trace-config'"]),
    ],
)
def test_settings_that_are_warned_of(line: str, texts: list[str]) -> None:
    settings = read(line)
    assert [text in warning for text, warning in zip(texts, settings.warnings, strict=True)] == [True] * len(texts)
    assert settings.disable_auto_complete_config == (line.endswith("=true") or "auto-complete" in line)
    assert tls_files(settings, "grpc") is None


def test_ports_of_platforms_that_ask_for_no_token_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("a-token-of-some-length")
    (warning,) = read(f"--auth-token-file={tmp_path / 'tokens'} --allow-sagemaker=true").warnings
    assert "on the port of SageMaker the platform says who may call" in warning


# --- tracing


def config(*texts: str, **fields: Any) -> TraceOptions:
    return ServerSettings(trace_config=texts, **fields).trace_options


def test_nothing_is_traced_unless_asked_for() -> None:
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
def test_trace_settings_that_are_refused(texts: str, source: str, reason: str) -> None:
    with pytest.raises(BadOption) as refused:
        config(*texts.split())
    assert str(refused.value).startswith(f'Bad option: "--trace-config{source}".\n')
    assert reason in str(refused.value)
    with pytest.raises(BadOption, match="OTEL_BSP_SCHEDULE_DELAY"):
        config("mode=opentelemetry", otel_schedule_delay="soon")
