from __future__ import annotations

import re
from pathlib import Path

import pytest

from trident.adapters.common.options import BadOption
from trident.app.settings.reading import read_settings
from trident.app.settings.rules import deprecations, tls_files

REPOSITORY = "--model-repository=/models"


def refusal(*arguments: str) -> str:
    with pytest.raises(BadOption) as error:
        read_settings([REPOSITORY, *arguments], {})
    return str(error.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--model-control-mode=some"],
            'Bad option: "--model-control-mode".\n'
            "invalid argument for --model-control-mode: 'some' is not one of none, poll, explicit",
        ),
        (
            ["--load-model=a"],
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (
            ["--model-control-mode=explicit", "--load-model=a", "--load-model=*"],
            "Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        (["--model-config-name="], "Error: empty argument for --model-config-name"),
        (["--single-model="], 'Bad option: "--single-model".\nthe model\'s name is missing'),
        (
            ["--single-model=a/b"],
            'Bad option: "--single-model".\na name with a slash or a NUL cannot be the name of a model',
        ),
        (
            ["--single-model=a", "--model-repository=/other"],
            'Bad option: "--single-model".\nit names the model of one repository, but several are given',
        ),
        (
            ["--http-port=0"],
            "The server cannot listen to HTTP requests at port 0: choose the port that clients use",
        ),
        (["--http-max-input-size=0"], "Error: --http-max-input-size must be greater than 0."),
        (["--http-max-input-size=-1"], "Error: --http-max-input-size must be greater than 0."),
        (
            ["--http-port=8002"],
            "The server cannot listen to HTTP requests and metrics requests at the same address and port 0.0.0.0:8002",
        ),
        (
            ["--allow-sagemaker=true", "--sagemaker-port=8000"],
            "The server cannot listen to HTTP requests and SageMaker requests at the same address and port "
            "0.0.0.0:8000",
        ),
        (
            ["--http-port=8001"],
            "The server cannot listen to GRPC requests and HTTP requests at the same address and port 0.0.0.0:8001",
        ),
        (
            ["--grpc-port=0"],
            "The server cannot listen to GRPC requests at port 0: choose the port that clients use",
        ),
        (
            ["--grpc-infer-thread-count=1"],
            'Bad option: "--grpc-infer-thread-count".\n'
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
        ),
        (
            ["--grpc-infer-response-compression-level=some"],
            'Bad option: "--grpc-infer-response-compression-level".\n'
            "invalid argument for --grpc_infer_response_compression_level: 'some' is not one of none, low, medium, "
            "high",
        ),
        (["--grpc-use-ssl=true"], 'Bad option: "--grpc-server-cert".\n--grpc-use-ssl needs this file'),
        (
            ["--grpc-use-ssl-mutual=true", "--grpc-server-cert=a", "--grpc-server-key=b"],
            'Bad option: "--grpc-root-cert".\n--grpc-use-ssl-mutual needs this file',
        ),
        (
            ["--grpc-use-ssl=true", "--grpc-server-cert=/none", "--grpc-server-key=/none"],
            "Bad option: \"--grpc-use-ssl\".\nthe certificate '/none' with the key '/none' cannot be used: No such "
            "file or directory (both are files in PEM; the key has no password and belongs to the first certificate)",
        ),
        (
            ["--grpc-restricted-protocol=helth:k=v"],
            "Bad option: \"--grpc-restricted-protocol\".\nunknown restricted protocol 'helth' (one of health, "
            "metadata, inference, shared-memory, model-config, model-repository, statistics, trace, logging)",
        ),
        (
            ["--grpc-restricted-protocol=health:secret"],
            'Bad option: "--grpc-restricted-protocol".\nit takes <group>[,<group>...]:<header>=<value>',
        ),
        (
            ["--allow-sagemaker=true", "--sagemaker-safe-port-range=8000-8001"],
            "The server cannot listen to metrics requests at port 8002, allowed port range is [8000, 8001]",
        ),
        (
            ["--allow-sagemaker=true", "--sagemaker-safe-port-range=8001-8002"],
            "The server cannot listen to HTTP requests at port 8000, allowed port range is [8001, 8002]",
        ),
        (
            ["--sagemaker-safe-port-range=2-1"],
            'Bad option: "--sagemaker-safe-port-range".\n'
            "--sagemaker-safe-port-range: the ports of a range go up, from 0 to 65535, not '2-1'",
        ),
        (
            ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"],
            "Error: --allow-http=false, --allow-grpc=false and --allow-metrics=false leave nothing to serve.",
        ),
        (
            ["--http-restricted-api=helth:k=v"],
            "Bad option: \"--http-restricted-api\".\nunknown restricted api 'helth' (one of health, metadata, "
            "inference, shared-memory, model-config, model-repository, statistics, trace, logging)",
        ),
        (
            ["--http-restricted-api=health:a=b", "--http-restricted-api=trace,health:c=d"],
            'Bad option: "--http-restricted-api".\n'
            "restricted api 'health' can not be specified in multiple config groups",
        ),
        (
            ["--backend-config=onnxruntime,threads"],
            'Bad option: "--backend-config".\n'
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got onnxruntime,threads",
        ),
    ],
)
def test_invalid_settings_end_the_start(arguments: list[str], text: str) -> None:
    assert refusal(*arguments) == text


def test_ports_within_the_safe_range_pass() -> None:
    arguments = ["--allow-sagemaker=true", "--sagemaker-safe-port-range=8000-8002", "--sagemaker-port=9"]
    found = read_settings([REPOSITORY, *arguments], {})
    assert {name: each.port for name, each in found.services().items()} == {
        "GRPC": 8001,
        "HTTP": 8000,
        "SageMaker": 9,
        "metrics": 8002,
    }


def test_an_invalid_pattern_is_refused() -> None:
    text = refusal("--http-header-forward-pattern=(")
    assert text.startswith('Bad option: "--http-header-forward-pattern".\n')
    assert "is not a regular expression: '('" in text


def test_a_refused_secret_is_not_repeated() -> None:
    assert "s3cret" not in refusal("--http-restricted-api=health:s3cret")
    assert "s3cret" not in refusal("--http-restricted-api=health=s3cret")
    assert "s3cret" not in refusal("--http-restricted-api=unknown:key=s3cret")


@pytest.mark.parametrize("arguments", [[], ["--model-repository="]])
def test_a_missing_model_repository_is_refused(arguments: list[str]) -> None:
    with pytest.raises(BadOption, match=r"^--model-repository must be specified$"):
        read_settings(arguments, {})


def test_the_deprecated_option_works_and_warns() -> None:
    deprecated = "'--strict-model-config' has been deprecated"
    strict = read_settings([REPOSITORY, "--strict-model-config=true"], {})
    assert strict.disable_auto_complete_config
    assert [deprecated in text for text in strict.warnings] == [True]
    lenient = read_settings([REPOSITORY, "--strict-model-config=false"], {})
    assert not lenient.disable_auto_complete_config
    assert [deprecated in text for text in lenient.warnings] == [True]
    settings = read_settings([REPOSITORY, "--disable-auto-complete-config", "--strict-model-config=false"], {})
    assert settings.disable_auto_complete_config
    assert [text.partition(" is ")[2] for text in settings.warnings][1:] == [
        "overridden by '--disable-auto-complete-config'."
    ]
    assert deprecations({"disable_auto_complete_config": True}) == ()


@pytest.mark.parametrize("service", ["sagemaker", "vertex-ai"])
def test_a_named_port_that_is_closed_is_refused(service: str) -> None:
    with pytest.raises(
        BadOption, match=f'^Bad option: "--{service}-port".\nthis port is closed: add --allow-{service}'
    ):
        read_settings(["--model-repository=/models", f"--{service}-port=9000"], {})
    read_settings(["--model-repository=/models", f"--{service}-port=9000", f"--allow-{service}=false"], {})


def test_a_port_that_the_platform_closes_may_be_named() -> None:
    read_settings(["--model-repository=/models", "--http-port=9000"], {"AIP_MODE": "PREDICTION"})


def test_a_unix_socket_has_no_port() -> None:
    settings = read_settings([REPOSITORY, "--grpc-address=unix:/run/grpc", "--http-port=8001"], {})
    assert settings.services()["GRPC"][:3] == ("unix:/run/grpc", 0, "--grpc-address")


@pytest.mark.parametrize(("port", "word"), [("grpc", "gRPC"), ("http", "HTTP")])
def test_files_of_tls_without_tls_are_warned_of(port: str, word: str) -> None:
    settings = read_settings([REPOSITORY, f"--{port}-server-cert=/a", f"--{port}-server-key=/b"], {})
    assert settings.warnings == (
        f"without --{port}-use-ssl=true the {word} port has no TLS, and --{port}-server-cert, --{port}-server-key has "
        "no effect",
    )
    assert tls_files(settings, port) is None


@pytest.mark.parametrize("port", ["grpc", "http"])
def test_a_closed_port_needs_no_files(port: str) -> None:
    assert read_settings([REPOSITORY, f"--allow-{port}=false", f"--{port}-use-ssl=true"], {})


@pytest.mark.parametrize(
    ("content", "arguments", "text"),
    [
        ("", [], "cannot be used: it has no token (one token a line"),
        ("a-token-of-some-length", ["--allow-http=false", "--allow-grpc=false"], "both are closed"),
        (None, [], "No such file or directory"),
    ],
)
def test_tokens_that_nobody_could_show_end_the_start(
    content: str | None, arguments: list[str], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadOption, match=re.escape(text)) as refused:
        read_settings([REPOSITORY, f"--auth-token-file={path}", *arguments], {})
    assert str(refused.value).startswith('Bad option: "--auth-token-file".\n')


def test_a_scope_without_tokens_ends_the_start() -> None:
    with pytest.raises(BadOption, match="without --auth-token-file no token is asked for"):
        read_settings([REPOSITORY, "--auth-token-scope=all"], {})


def test_ports_of_platforms_that_ask_for_no_token_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("a-token-of-some-length")
    settings = read_settings([REPOSITORY, f"--auth-token-file={path}", "--allow-sagemaker=true"], {})
    assert settings.warnings == (
        "--auth-token-file is for the HTTP and gRPC ports: on the port of SageMaker the platform says who may call",
    )


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--metrics-log=json", "'json' is not one of none, emf, gcp"),
        ("--metrics-log-interval-secs=0", "Provided option value is out of bound. Got 0"),
        ("--metrics-log-namespace=", "it takes 1 to 255 printable ASCII characters"),
        ("--metrics-log-namespace=:a", "that do not begin with a colon or AWS/"),
        ("--metrics-log-namespace=AWS/SageMaker", "that do not begin with a colon or AWS/"),
        (
            "--metrics-log-dimension=endpoint",
            "--metrics-log-dimension option format is <setting>=<value>. Got endpoint",
        ),
        ("--metrics-log-dimension=end point=e", "'end point' cannot be a name"),
        ("--metrics-log-dimension=model=e", "'model' is the name of a metric or of another dimension"),
        ("--metrics-log-dimension=request_success=e", "'request_success' is the name of a metric"),
        ("--metrics-log-dimension=endpoint=é", "the value of 'endpoint' takes 1 to 255 printable ASCII characters"),
    ],
)
def test_what_cloudwatch_would_drop_is_refused(argument: str, text: str) -> None:
    assert text in refusal(argument)


def test_cloudwatch_takes_at_most_thirty_dimensions() -> None:
    dimensions = [f"--metrics-log-dimension=d{number}=x" for number in range(29)]
    assert "at most 28 dimensions are possible" in refusal(*dimensions)
    found = read_settings([REPOSITORY, *dimensions[1:], "--metrics-log-dimension=d1=a=b"], {})
    assert found.metrics_log_dimensions["d1"] == "a=b"
