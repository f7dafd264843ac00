from __future__ import annotations

import pytest

from trident.core.errors import ConfigInvalid
from trident.core.frontend.access import GRPC, ApiRestricted, RestrictedApi, Restrictions, parse_restricted


def test_an_option_names_groups_and_a_header() -> None:
    assert parse_restricted(["health,model-config:admin-key=a=b:c"]) == (
        RestrictedApi(("health", "model-config"), "admin-key", "a=b:c"),
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["nope:k=v"], "unknown restricted api 'nope' "),
        (["health,:k=v"], "unknown restricted api '' "),
        (["health:a=b", "trace,health:c=d"], "restricted api 'health' can not be specified in multiple config groups"),
        (["health,health:a=b"], "restricted api 'health' can not be specified in multiple config groups"),
    ],
)
def test_unknown_and_repeated_groups_are_refused(options: list[str], text: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse_restricted(options)
    assert refused.value.message == text


@pytest.mark.parametrize("option", ["health", "health:key", "health=secret", "health:=secret"])
def test_a_malformed_option_is_refused_without_showing_the_value(option: str) -> None:
    with pytest.raises(ConfigInvalid, match="--http-restricted-api wants"):
        parse_restricted([option])


def test_repr_hides_the_value() -> None:
    assert "hidden" not in repr(RestrictedApi(("health",), "key", "hidden"))


LONGER = {"Admin-Key": "välue2".encode().decode("latin-1")}


def test_only_the_exact_value_opens_a_group() -> None:
    restrictions = Restrictions([RestrictedApi(("health",), "Admin-Key", "välue")])
    restrictions.check("metadata", {}.get)
    restrictions.check("health", {"Admin-Key": "välue".encode().decode("latin-1")}.get)
    for headers in (
        {},
        LONGER,
        {"Admin-Key": "valu"},
        {"Admin-Key": "VÄLUE"},
        {"Admin-Key": ""},
        {"Admin-Key": "\u20ac"},
    ):
        with pytest.raises(ApiRestricted) as refused:
            restrictions.check("health", headers.get)
        assert refused.value.message == "This API is restricted, expecting header 'Admin-Key'"


def test_grpc_has_its_own_words_and_a_prefix_of_its_keys() -> None:
    (api,) = parse_restricted(["inference:key=value"], GRPC)
    assert api.header == "triton-grpc-protocol-key"
    restrictions = Restrictions([api], GRPC)
    restrictions.check("inference", {"triton-grpc-protocol-key": "value"}.get)
    with pytest.raises(ApiRestricted) as refused:
        restrictions.check("inference", {}.get)
    assert refused.value.message == "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
    for option, text in (("nope:k=v", "unknown restricted protocol 'nope' "), ("health", "--grpc-restricted-protocol")):
        with pytest.raises(ConfigInvalid, match=text):
            parse_restricted([option], GRPC)


def test_an_empty_value_still_requires_the_header() -> None:
    restrictions = Restrictions([RestrictedApi(("health",), "key", "")])
    restrictions.check("health", {"key": ""}.get)
    with pytest.raises(ApiRestricted):
        restrictions.check("health", {}.get)
