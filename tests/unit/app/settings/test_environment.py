from __future__ import annotations

import pytest

from trident.adapters.common.options import INTEGER, TEXT, BadOption, Option
from trident.app.settings.sources import given_variables

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


def given(**environ: str) -> list[tuple[str, list[str]]]:
    return [(name, texts) for _, name, texts in given_variables(OPTIONS, environ)]


def test_other_variables_are_ignored() -> None:
    assert given(PATH="/bin", TRIDENT_HTTP_PORT="1", TRIDENTINE="x") == [("TRIDENT_HTTP_PORT", ["1"])]


@pytest.mark.parametrize("text", ["/a;/b c", "/a\n/b c\n", ";/a;;\r\n/b c;"])
def test_a_repeatable_option_takes_several_values(text: str) -> None:
    assert given(TRIDENT_MODEL_REPOSITORY=text) == [("TRIDENT_MODEL_REPOSITORY", ["/a", "/b c"])]


def test_a_semicolon_in_the_value_of_another_option_stays() -> None:
    assert given(CUDA_VISIBLE_DEVICES="0;1") == [("CUDA_VISIBLE_DEVICES", ["0;1"])]


def test_an_alias_has_its_own_variable() -> None:
    assert given(TRIDENT_MODEL_STORE="/a") == [("TRIDENT_MODEL_STORE", ["/a"])]


def test_an_empty_variable_counts_only_where_empty_is_a_value() -> None:
    assert given(TRIDENT_HTTP_PORT="", CUDA_VISIBLE_DEVICES="") == [("CUDA_VISIBLE_DEVICES", [""])]


def test_an_unknown_variable_with_our_prefix_names_the_closest_one() -> None:
    with pytest.raises(BadOption) as refusal:
        given(TRIDENT_HTP_PORT="1")
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
    assert given(**{name: text}) == []
