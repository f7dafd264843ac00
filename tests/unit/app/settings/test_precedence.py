from __future__ import annotations

import pytest

from trident.adapters.common.options import BadOption, OptionValues
from trident.app.settings.server import SERVER_OPTIONS
from trident.app.settings.sources import ENVIRONMENT, FLAG, PlatformText, collect, parse_arguments


def given(*arguments: str, **environ: str) -> OptionValues:
    return collect(SERVER_OPTIONS, arguments, environ)


def test_the_command_line_overrides_the_environment() -> None:
    found = given("--http-port=1", TRIDENT_HTTP_PORT="2", TRIDENT_METRICS_PORT="3")
    assert found.values == {"http_port": 1, "metrics_port": 3}
    assert found.sources == {"http_port": FLAG, "metrics_port": ENVIRONMENT}


def test_the_last_of_several_values_counts() -> None:
    assert given("--http-port=1", "--http-port=2").values == {"http_port": 2}


def test_values_of_a_repeatable_option_accumulate_within_one_source() -> None:
    assert given("--model-repository=/a", "--model-store=/b").values == {"model_repository": ("/a", "/b")}
    assert given(TRIDENT_MODEL_REPOSITORY="/a;/b", TRIDENT_MODEL_STORE="/c").values == {
        "model_repository": ("/a", "/b", "/c")
    }
    assert given("--model-store=/x", TRIDENT_MODEL_REPOSITORY="/a;/b").values == {"model_repository": ("/x",)}


def test_each_option_without_effect_is_named_once() -> None:
    found = given(
        "--buffer-manager-thread-count=1",
        "--buffer-manager-thread-count=2",
        "--http-port=3",
        TRIDENT_CACHE_DIRECTORY="/x",
    )
    assert found.without_effect == ("TRIDENT_CACHE_DIRECTORY", "--buffer-manager-thread-count")
    assert found.values == {"http_port": 3}


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


def test_a_platform_is_overridden_by_all_others_and_its_last_text_counts() -> None:
    port, repository = SERVER_OPTIONS["http_port"], SERVER_OPTIONS["model_repository"]
    texts = [
        PlatformText(port, "1", "platform"),
        PlatformText(port, "2", "PORT"),
        PlatformText(repository, "/a", "MODELS"),
        PlatformText(repository, "/b", "MODELS"),
    ]
    found = collect(SERVER_OPTIONS, [], {}, platform=texts)
    assert found.values == {"http_port": 2, "model_repository": ("/a", "/b")}
    assert found.sources == {"http_port": "PORT", "model_repository": "MODELS"}
    found = collect(SERVER_OPTIONS, ["--model-repository=/x"], {"TRIDENT_HTTP_PORT": "3"}, platform=texts)
    assert found.values == {"http_port": 3, "model_repository": ("/x",)}
    assert found.sources == {"http_port": ENVIRONMENT, "model_repository": FLAG}


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
