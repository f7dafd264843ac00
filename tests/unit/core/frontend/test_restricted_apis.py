from __future__ import annotations

import pytest

from core.errors import ConfigInvalid
from core.frontend.restricted_apis import RestrictedApi, Restrictions, parse_restricted
from core.http.errors import ApiRestricted


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
def test_groups_that_cannot_be(options: list[str], text: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse_restricted(options)
    assert refused.value.message == text


@pytest.mark.parametrize("option", ["health", "health:key", "health=secret", "health:=secret"])
def test_a_malformed_option_is_refused_without_showing_the_value(option: str) -> None:
    with pytest.raises(ConfigInvalid, match="--http-restricted-api wants"):
        parse_restricted([option])


def test_the_value_is_not_in_the_repr() -> None:
    assert "hidden" not in repr(RestrictedApi(("health",), "key", "hidden"))


def test_nothing_restricted_is_false() -> None:
    assert not Restrictions(())


@pytest.mark.parametrize(
    ("header", "key"),
    [("admin-Key", "HTTP_ADMIN_KEY"), ("Content-Type", "CONTENT_TYPE")],
)
def test_only_the_exact_value_opens(header: str, key: str) -> None:
    restrictions = Restrictions([RestrictedApi(("health",), header, "välue")])
    assert restrictions
    restrictions.check("metadata", {})
    restrictions.check("health", {key: "välue".encode().decode("latin-1")})
    for environ in ({}, {key: "valu"}, {key: "VÄLUE"}, {key: ""}, {key: "\u20ac"}):
        with pytest.raises(ApiRestricted) as refused:
            restrictions.check("health", environ)
        assert refused.value.message == f"This API is restricted, expecting header '{header}'"


def test_an_underscore_is_no_hyphen() -> None:
    restrictions = Restrictions([RestrictedApi(("health",), "admin_key", "a")])
    restrictions.check("health", {"trident.headers": [("Admin-Key", "b"), ("Admin_Key", "a")], "HTTP_ADMIN_KEY": "b"})
    with pytest.raises(ApiRestricted):
        restrictions.check("health", {"trident.headers": [("Admin-Key", "a")], "HTTP_ADMIN_KEY": "a"})
    restrictions.check("health", {"HTTP_ADMIN_KEY": "a"})  # another server has not kept the names


def test_an_empty_value_still_wants_the_header() -> None:
    restrictions = Restrictions([RestrictedApi(("health",), "key", "")])
    restrictions.check("health", {"HTTP_KEY": ""})
    with pytest.raises(ApiRestricted):
        restrictions.check("health", {})
