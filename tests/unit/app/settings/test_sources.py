from __future__ import annotations

import pytest

from trident.adapters.common.options import INTEGER, SWITCH, TEXT, BadOption, BadValue, Kind, Option, OptionValues
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS
from trident.app.settings.sources import (
    ENVIRONMENT,
    FLAG,
    CommandLine,
    PlatformText,
    collect,
    given_variables,
    parse_arguments,
)

OPTIONS = [
    Option(flag="http-port", kind=INTEGER, variable="TRIDENT_HTTP_PORT"),
    Option(
        flag="model-repository",
        kind=TEXT,
        variable="TRIDENT_MODEL_REPOSITORY",
        repeatable=True,
        aliases=("model-store",),
    ),
    Option(flag="", kind=TEXT, variable="CUDA_VISIBLE_DEVICES", empty_counts=True),
]


def in_environment(**environ: str) -> list[tuple[str, list[str]]]:
    return [(name, texts) for _, name, texts in given_variables(OPTIONS, environ)]


def test_variables_with_our_prefix_are_read() -> None:
    assert in_environment(PATH="/bin", TRIDENT_HTTP_PORT="1", TRIDENTINE="x") == [("TRIDENT_HTTP_PORT", ["1"])]
    assert in_environment(CUDA_VISIBLE_DEVICES="0;1") == [("CUDA_VISIBLE_DEVICES", ["0;1"])]
    assert in_environment(TRIDENT_MODEL_STORE="/a") == [("TRIDENT_MODEL_STORE", ["/a"])]
    assert in_environment(TRIDENT_HTTP_PORT="", CUDA_VISIBLE_DEVICES="") == [("CUDA_VISIBLE_DEVICES", [""])]


@pytest.mark.parametrize("text", ["/a;/b c", "/a\n/b c\n", ";/a;;\r\n/b c;"])
def test_a_repeatable_option_takes_several_values(text: str) -> None:
    assert in_environment(TRIDENT_MODEL_REPOSITORY=text) == [("TRIDENT_MODEL_REPOSITORY", ["/a", "/b c"])]


def test_an_unknown_variable_with_our_prefix_names_the_closest_one() -> None:
    with pytest.raises(BadOption) as refusal:
        in_environment(TRIDENT_HTP_PORT="1")
    assert str(refusal.value) == (
        'Bad variable: "TRIDENT_HTP_PORT".\nunknown variable; did you mean TRIDENT_HTTP_PORT?'
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TRIDENT_SERVICE_HOST", "10.0.0.1"),
        ("TRIDENT_SERVICE_PORT", "8000"),
        ("TRIDENT_SERVICE_PORT_HTTP", "8000"),
        ("TRIDENT_PORT", "tcp://10.0.0.1:8000"),
        ("TRIDENT_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("TRIDENT_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("TRIDENT_PORT_8000_TCP_PORT", "8000"),
        ("TRIDENT_METRICS_SERVICE_HOST", "10.0.0.1"),
        # The service trident-http: the variable has the name of an option, and only its value differs.
        ("TRIDENT_HTTP_PORT", "tcp://10.0.0.1:80"),
    ],
)
def test_the_variables_of_a_kubernetes_service_are_ignored(name: str, text: str) -> None:
    assert in_environment(**{name: text}) == []


def made(flag: str, kind: Kind[object] = TEXT, *, own: bool = False, aliases: tuple[str, ...] = ()) -> Option:
    return Option(flag=flag, kind=kind, own=own, aliases=aliases)


LINE = CommandLine(
    [
        made("http-port", INTEGER),
        made("http-address"),
        made("http-request-timeout", own=True),
        made("http-restricted-api"),
        made("log-access", own=True),
        made("model-repository", aliases=("model-store",)),
        made("strict", SWITCH),
    ]
)


def on_command_line(*arguments: str) -> list[tuple[str, str]]:
    return [(option.flag, text) for option, text in LINE.given(arguments)]


def refusal(*arguments: str) -> str:
    with pytest.raises(BadOption) as error:
        LINE.given(arguments)
    return str(error.value)


def test_a_value_follows_its_option_and_may_be_anything() -> None:
    assert on_command_line("--http-port=1", "--http-port", "2") == [("http-port", "1"), ("http-port", "2")]
    assert on_command_line("--http-address=", "--http-address=a=b", "--http-address", "--strict") == [
        ("http-address", ""),
        ("http-address", "a=b"),
        ("http-address", "--strict"),
    ]


def test_an_option_is_refused_without_its_value_or_with_one_too_many() -> None:
    assert on_command_line("--strict", "--http-port=1") == [("strict", "true"), ("http-port", "1")]
    assert refusal("--strict=true").startswith('Bad option: "--strict".\nit takes no value')
    assert refusal("--strict", "--http-port") == 'Bad option: "--http-port".\na value is missing; it takes integer'


@pytest.mark.parametrize(
    ("argument", "flag"),
    [
        ("--http-p=1", "http-port"),
        ("--s", "strict"),
        ("--model-r=x", "model-repository"),
        ("--model-store=x", "model-repository"),
        # Both names are of one option, so nothing is ambiguous.
        ("--model=x", "model-repository"),
        ("--log=x", "log-access"),
    ],
)
def test_a_unique_prefix_is_enough(argument: str, flag: str) -> None:
    assert on_command_line(argument)[0][0] == flag


def test_a_prefix_must_name_one_option() -> None:
    assert on_command_line("--http-re=x") == [("http-restricted-api", "x")]
    assert on_command_line("--http-req=x") == [("http-request-timeout", "x")]
    names = "--http-address, --http-port, --http-restricted-api"
    assert refusal("--http-=1") == f'Bad option: "--http-".\nambiguous: it may be {names}'


@pytest.mark.parametrize("argument", ["--htp-port=1", "--http-prt", "--http_port=1"])
def test_a_misspelled_option_names_the_closest_one(argument: str) -> None:
    name = argument.partition("=")[0]
    assert refusal(argument) == f'Bad option: "{name}".\nunknown option; did you mean --http-port?'


def test_an_option_without_a_close_name_is_unknown() -> None:
    assert refusal("--zzz") == 'Bad option: "--zzz".\nunknown option'
    assert refusal("--=x") == 'Bad option: "--".\nunknown option'


@pytest.mark.parametrize("arguments", [("models",), ("-p", "1"), ("--", "models"), ("",)])
def test_a_positional_argument_is_unexpected(arguments: tuple[str, ...]) -> None:
    unexpected = next(each for each in arguments if each != "--")
    assert refusal(*arguments) == f"Unexpected argument: {unexpected}"


def test_split_returns_the_positional_arguments() -> None:
    options, others = LINE.split(["a", "--strict", "b", "--http-port", "1", "--", "--c"])
    assert [option.flag for option, _ in options] == ["strict", "http-port"]
    assert others == ["a", "b", "--c"]


def given(*arguments: str, **environ: str) -> OptionValues:
    return collect(SERVER_OPTIONS, arguments, environ)


def test_the_last_value_of_the_strongest_source_counts() -> None:
    found = given("--http-port=1", TRIDENT_HTTP_PORT="2", TRIDENT_METRICS_PORT="3")
    assert found.values == {"http_port": 1, "metrics_port": 3}
    assert found.sources == {"http_port": FLAG, "metrics_port": ENVIRONMENT}
    assert given("--http-port=1", "--http-port=2").values == {"http_port": 2}
    assert given("--model-repository=/a", "--model-store=/b").values == {"model_repository": ("/a", "/b")}
    assert given(TRIDENT_MODEL_REPOSITORY="/a;/b", TRIDENT_MODEL_STORE="/c").values == {
        "model_repository": ("/a", "/b", "/c")
    }
    assert given("--model-store=/x", TRIDENT_MODEL_REPOSITORY="/a;/b").values == {"model_repository": ("/x",)}


def test_a_bad_value_is_refused_with_its_source() -> None:
    with pytest.raises(BadOption) as refusal:
        given("--http-port=1.4")
    assert str(refusal.value) == 'Bad option: "--http-port".\nInvalid option value. Got 1.4'
    with pytest.raises(BadOption) as refusal:
        given(TRIDENT_HTTP_PORT="x")
    assert str(refusal.value) == 'Bad variable: "TRIDENT_HTTP_PORT".\nInvalid option value. Got x'
    with pytest.raises(BadOption) as refusal:
        given("--buffer-manager-thread-count=x")
    assert str(refusal.value) == 'Bad option: "--buffer-manager-thread-count".\nInvalid option value. Got x'


def test_a_bad_variable_is_refused_even_if_the_command_line_overrides_it() -> None:
    with pytest.raises(BadOption, match="TRIDENT_HTTP_PORT"):
        given("--http-port=1", TRIDENT_HTTP_PORT="x")


def test_a_bad_value_of_a_platform_names_the_variable_and_the_option() -> None:
    texts = [PlatformText(SERVER_OPTIONS["http_port"], "x", "PORT")]
    with pytest.raises(BadOption) as refusal:
        collect(SERVER_OPTIONS, [], {}, platform=texts)
    assert str(refusal.value) == ('Bad variable: "PORT".\nInvalid option value. Got x; --http-port takes integer')


def test_a_command_line_in_a_variable_is_parsed() -> None:
    options = SERVER_OPTIONS.values()
    found = parse_arguments(options, ["--http-port=1", "--disable-auto-complete-config"], "ARGS")
    assert [(each.option.flag, each.text, each.source) for each in found] == [
        ("http-port", "1", "ARGS"),
        ("disable-auto-complete-config", "true", "ARGS"),
    ]
    with pytest.raises(BadOption, match='Bad variable: "ARGS"') as refusal:
        parse_arguments(options, ["--htp-port=1"], "ARGS")
    assert "did you mean --http-port?" in str(refusal.value)


BY_FLAG = {each.flag: each for each in UNUSED_OPTIONS}
# Every option of tritonserver's command line.
TRITONSERVER = """
id exit-timeout-secs model-repository exit-on-error disable-auto-complete-config strict-model-config strict-readiness
model-control-mode repository-poll-secs load-model model-config-name model-load-thread-count model-load-retry-count
model-namespacing enable-peer-access allow-http http-address http-port reuse-http-port http-header-forward-pattern
http-thread-count http-max-input-size http-restricted-api allow-grpc grpc-address grpc-port reuse-grpc-port
grpc-header-forward-pattern grpc-infer-thread-count grpc-infer-allocation-pool-size grpc-max-response-pool-size
grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert
grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout grpc-keepalive-permit-without-calls
grpc-http2-max-pings-without-data grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes
grpc-max-connection-age grpc-max-connection-age-grace grpc-restricted-protocol log-verbose log-info log-warning
log-error log-format log-file allow-metrics allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port
metrics-interval-ms metrics-config trace-config trace-file trace-level trace-rate trace-count trace-log-frequency
cache-config cache-directory response-cache-byte-size rate-limit rate-limit-resource pinned-memory-pool-byte-size
cuda-memory-pool-byte-size cuda-virtual-address-size min-supported-compute-capability buffer-manager-thread-count
host-policy model-load-gpu-limit allow-client-shm backend-directory backend-config repoagent-directory allow-sagemaker
sagemaker-port sagemaker-safe-port-range sagemaker-thread-count allow-vertex-ai vertex-ai-port vertex-ai-thread-count
vertex-ai-default-model
"""


def test_every_option_of_tritonserver_is_known_once() -> None:
    served = [each.flag for each in SERVER_OPTIONS.values() if each.flag and not each.own]
    assert sorted([*served, *BY_FLAG]) == sorted(TRITONSERVER.split())


@pytest.mark.parametrize(
    ("flag", "text", "reason"),
    [
        ("grpc-infer-allocation-pool-size", "x", "Invalid option value. Got x"),
        ("grpc-max-response-pool-size", "0", "Error: --grpc-max-response-pool-size must be greater than 0."),
        ("enable-peer-access", "perhaps", "invalid value for bool option: perhaps"),
        (
            "host-policy",
            "cpu=1",
            "--host-policy option format is '<policy name>,<setting>=<value>'. Got cpu=1",
        ),
    ],
)
def test_an_invalid_value_of_an_unused_option_is_refused(flag: str, text: str, reason: str) -> None:
    with pytest.raises(BadValue) as refusal:
        BY_FLAG[flag].kind.parse(text)
    assert str(refusal.value) == reason


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("grpc-max-response-pool-size", "1"),
        ("cuda-memory-pool-byte-size", "0:67108864"),
    ],
)
def test_a_valid_value_of_an_unused_option_passes(flag: str, text: str) -> None:
    BY_FLAG[flag].kind.parse(text)
