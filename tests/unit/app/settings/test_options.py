"""Options: their rows, the kinds of their values, and how a command line, variables and a platform give them."""

from __future__ import annotations

from typing import Any

import pytest

from trident.adapters.common.options import (
    ADDRESS,
    BOOLEAN,
    INTEGER,
    INTEGER64,
    LEVEL,
    NOT_ZERO,
    PORT,
    SWITCH,
    TEXT,
    BadOption,
    BadValue,
    Kind,
    Option,
    OptionValues,
    at_least,
    choice,
    integer,
    number,
    pair,
    setting,
)
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.reading import collect, given_variables, split_arguments
from trident.app.settings.server import SERVER_OPTIONS

# --- rows


def test_a_secret_is_masked_after_its_name() -> None:
    secret = Option(flag="keys", kind=TEXT, repeatable=True, secret=True)
    assert secret.show(("health:X-Key=s3cret=s3cret", "s3cret")) == "health:X-Key=***, ***"
    assert Option(flag="x", kind=BOOLEAN).show(True) == "true"
    assert Option(flag="x", kind=number()).show(0.25) == "0.25"


# --- kinds of values

WORDS = choice("log-format", "default", "ISO8601")
POLICY, METRIC = setting("host-policy", "policy name", "numa-node", "cpu-cores"), setting("metrics-config", "")
POOL = pair("cuda-memory-pool-byte-size", "device id", "bytes", integer(0))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *((BOOLEAN, text, True) for text in ("true", "ON", "1")),
        *((BOOLEAN, text, False) for text in ("False", "off", "0")),
        *((NOT_ZERO, text, text != "0") for text in ("0", "1", "no", "00")),
        (INTEGER, "-3", -3),
        (INTEGER, "2147483647", 2147483647),
        (INTEGER64, "9223372036854775807", 9223372036854775807),
        (at_least(1), "-3", 1),
        (LEVEL, "True", 1),
        (LEVEL, "4", 4),
        (number(), "2e3", 2000.0),
        (ADDRESS, "ipv6:[::1]", "[::1]"),
        (WORDS, "iso8601", "ISO8601"),
        (POLICY, "cpu,cpu-cores=0-3", "cpu,cpu-cores=0-3"),
        (METRIC, "counter_latencies=true", "counter_latencies=true"),
        (POOL, "0:64", "0:64"),
    ],
)
def test_valid_option_text_is_parsed(kind: Kind[Any], text: str, value: Any) -> None:
    parsed = kind.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (BOOLEAN, "yes", "invalid value for bool option: yes"),
        *((INTEGER, text, f"Invalid option value. Got {text}") for text in ("1.4", "", " 1", "1_000", "\u0661")),
        *((INTEGER, text, f"value is out of bound. Got {text}") for text in ("2147483648", "9" * 5000)),
        (PORT, "65536", "Provided option value is out of bound. Got 65536"),
        (at_least(1), "-2147483649", "Provided option value is out of bound. Got -2147483649"),
        (LEVEL, "on", "Invalid option value. Got on"),
        *((number(), text, f"Invalid option value. Got {text}") for text in ("nan", "inf")),
        (number(), "1e999", "Provided option value is out of bound. Got 1e999"),
        (number(0), "-1", "Provided option value is out of bound. Got -1"),
        (WORDS, "c", "invalid argument for --log-format: 'c' is not one of default, ISO8601"),
        (POLICY, "cpu=1", "--host-policy option format is '<policy name>,<setting>=<value>'. Got cpu=1"),
        (METRIC, "latencies", "--metrics-config option format is <setting>=<value>. Got latencies"),
        (POLICY, "cpu,cores=1", "there is no setting 'cores', only numa-node, cpu-cores"),
        (POOL, "64", "--cuda-memory-pool-byte-size argument requires format <device id>:<bytes>. Found: 64"),
        (POOL, "-1:64", "Provided option value is out of bound. Got -1"),
        (number(0, 1), "1.1", "Provided option value is out of bound. Got 1.1"),
        (POOL, "gpu:64", "Invalid option value. Got gpu"),
        (POOL, "0:-1", "Provided option value is out of bound. Got -1"),
    ],
)
def test_an_invalid_text_is_refused_with_the_reason(kind: Kind[Any], text: str, reason: str) -> None:
    with pytest.raises(BadValue) as refusal:
        kind.parse(text)
    assert str(refusal.value).endswith(reason)


# --- variables

OPTIONS = [
    Option(flag="http-port", kind=INTEGER, variable="TRIDENT_HTTP_PORT"),
    Option(flag="repo", kind=TEXT, variable="TRIDENT_REPO", repeatable=True, aliases=("store",)),
    Option(flag="", kind=TEXT, variable="CUDA_VISIBLE_DEVICES", empty_counts=True),
]


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"PATH": "/bin", "TRIDENT_HTTP_PORT": "1", "TRIDENTINE": "x"}, {"TRIDENT_HTTP_PORT": ["1"]}),
        ({"CUDA_VISIBLE_DEVICES": "0;1"}, {"CUDA_VISIBLE_DEVICES": ["0;1"]}),
        ({"TRIDENT_STORE": "/a"}, {"TRIDENT_STORE": ["/a"]}),
        ({"TRIDENT_HTTP_PORT": "", "CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": [""]}),
        *(({"TRIDENT_REPO": text}, {"TRIDENT_REPO": ["/a", "/b c"]}) for text in ("/a\n/b c\n", ";/a;;\r\n/b c;")),
        # What Kubernetes sets for a service `trident` or `trident-…`, which may be the name of an option.
        ({"TRIDENT_SERVICE_HOST": "10.0.0.1", "TRIDENT_SERVICE_PORT_HTTP": "8000"}, {}),
        ({"TRIDENT_PORT": "tcp://10.0.0.1:8000", "TRIDENT_PORT_8000_TCP_ADDR": "10.0.0.1"}, {}),
        ({"TRIDENT_METRICS_SERVICE_HOST": "10.0.0.1", "TRIDENT_HTTP_PORT": "tcp://10.0.0.1:80"}, {}),
    ],
)
def test_variables_are_read(environ: dict[str, str], found: dict[str, list[str]]) -> None:
    assert {name: texts for _, name, texts in given_variables(OPTIONS, environ)} == found


def test_an_unknown_variable_with_our_prefix_names_the_closest_one() -> None:
    with pytest.raises(
        BadOption, match=r'^Bad variable: "TRIDENT_HTP_PORT"\.\nunknown variable; did you mean TRIDENT_HTTP_PORT\?$'
    ):
        given_variables(OPTIONS, {"TRIDENT_HTP_PORT": "1"})


# --- the command line

OPTIONS_OF_LINE = [
    Option(flag="http-port", kind=INTEGER),
    Option(flag="http-address", kind=TEXT),
    Option(flag="http-request-timeout", kind=TEXT, own=True),
    Option(flag="http-restricted-api", kind=TEXT),
    Option(flag="log-access", kind=TEXT, own=True),
    Option(flag="model-repository", kind=TEXT, aliases=("model-store",)),
    Option(flag="strict", kind=SWITCH),
]


def test_positional_arguments_may_be_among_options_and_after_two_dashes() -> None:
    given, others = split_arguments(OPTIONS_OF_LINE, ["a", "--strict", "b", "--http-port", "-3", "--", "--strict"])
    assert [option.flag for option, _ in given] == ["strict", "http-port"]
    assert others == ["a", "b", "--strict"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--strict=true", 'Bad option: "--strict".\noption --strict must not have an argument'),
        ("--strict --http-port", 'Bad option: "--http-port".\noption --http-port requires argument'),
        ("--http-=1", "ambiguous: it may be --http-address, --http-port, --http-request-"),
        ("--htp-port=1", 'Bad option: "--htp-port".\nunknown option; did you mean --http-port?'),
        ("--zzz", 'Bad option: "--zzz".\nunknown option; --help lists the options'),
        ("-p 1", 'Bad option: "-p".\nunknown option; --help lists the options'),
    ],
)
def test_a_wrong_command_line_is_refused(line: str, text: str) -> None:
    with pytest.raises(BadOption) as refused:
        split_arguments(OPTIONS_OF_LINE, line.split())
    assert text in str(refused.value)


# --- all sources together


def given(*arguments: str, **environ: str) -> OptionValues:
    return collect(SERVER_OPTIONS, arguments, environ)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--grpc-infer-allocation-pool-size=x", "Invalid option value. Got x"),
        ("--grpc-max-response-pool-size=0", "Error: --grpc-max-response-pool-size must be greater than 0."),
        ("--enable-peer-access=perhaps", "invalid value for bool option: perhaps"),
        ("--host-policy=cpu=1", "option format is '<policy name>,<setting>=<value>'"),
    ],
)
def test_option_without_effect_is_still_validated(argument: str, reason: str) -> None:
    with pytest.raises(BadOption, match=reason):
        given(argument)
    found = given("--grpc-max-response-pool-size=1", "--cuda-memory-pool-byte-size=0:67108864")
    assert len(found.without_effect) == 2
    assert {each.flag for each in UNUSED_OPTIONS} >= {name.removeprefix("--") for name in found.without_effect}
