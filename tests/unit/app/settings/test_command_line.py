from __future__ import annotations

import pytest

from trident.adapters.common.options import FLAG, INTEGER, TEXT, BadOption, Kind, Option
from trident.app.settings.sources import CommandLine


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
        made("strict", FLAG),
    ]
)


def given(*arguments: str) -> list[tuple[str, str]]:
    return [(option.flag, text) for option, text in LINE.given(arguments)]


def refusal(*arguments: str) -> str:
    with pytest.raises(BadOption) as error:
        LINE.given(arguments)
    return str(error.value)


def test_a_value_follows_after_an_equals_sign_or_as_the_next_argument() -> None:
    assert given("--http-port=1", "--http-port", "2") == [("http-port", "1"), ("http-port", "2")]


def test_a_value_may_be_empty_or_look_like_an_option() -> None:
    assert given("--http-address=", "--http-address=a=b", "--http-address", "--strict") == [
        ("http-address", ""),
        ("http-address", "a=b"),
        ("http-address", "--strict"),
    ]


def test_a_flag_takes_no_value() -> None:
    assert given("--strict", "--http-port=1") == [("strict", "true"), ("http-port", "1")]
    assert refusal("--strict=true").startswith('Bad option: "--strict".\nit takes no value')


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
    assert given(argument)[0][0] == flag


def test_an_own_option_does_not_make_a_prefix_of_tritonservers_ambiguous() -> None:
    assert given("--http-re=x") == [("http-restricted-api", "x")]
    assert given("--http-req=x") == [("http-request-timeout", "x")]


def test_an_ambiguous_prefix_names_the_candidates() -> None:
    names = "--http-address, --http-port, --http-restricted-api"
    assert refusal("--http-=1") == f'Bad option: "--http-".\nambiguous: it may be {names}'


@pytest.mark.parametrize("argument", ["--htp-port=1", "--http-prt", "--http_port=1"])
def test_a_misspelled_option_names_the_closest_one(argument: str) -> None:
    name = argument.partition("=")[0]
    assert refusal(argument) == f'Bad option: "{name}".\nunknown option; did you mean --http-port?'


def test_an_option_without_a_close_name_is_unknown() -> None:
    assert refusal("--zzz") == 'Bad option: "--zzz".\nunknown option'
    assert refusal("--=x") == 'Bad option: "--".\nunknown option'


def test_an_option_without_its_value_is_refused() -> None:
    assert refusal("--strict", "--http-port") == 'Bad option: "--http-port".\na value is missing; it takes integer'


@pytest.mark.parametrize("arguments", [("models",), ("-p", "1"), ("--", "models"), ("",)])
def test_a_positional_argument_is_unexpected(arguments: tuple[str, ...]) -> None:
    unexpected = next(each for each in arguments if each != "--")
    assert refusal(*arguments) == f"Unexpected argument: {unexpected}"


def test_split_returns_the_positional_arguments() -> None:
    options, others = LINE.split(["a", "--strict", "b", "--http-port", "1", "--", "--c"])
    assert [option.flag for option, _ in options] == ["strict", "http-port"]
    assert others == ["a", "b", "--c"]
