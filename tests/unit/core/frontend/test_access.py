"""Bearer tokens and restricted APIs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trident.core.errors import ConfigInvalid
from trident.core.frontend.access import (
    GROUPS,
    ApiRestricted,
    AuthTokens,
    RestrictedApi,
    Restrictions,
    Scope,
    Unauthenticated,
    parse_restricted,
    read_tokens,
)

FIRST_LINE, SECOND_LINE = b"first-token-0123", b"second+token/0123=="


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it has no token"),
        (b"# nothing\n", "it has no token"),
        (FIRST_LINE + b"\nsecret and more of it", "line 2 has characters that no bearer token may have"),
        (b"short-secret", "the token in line 1 has less than 16 characters"),
        (b"".join(b"secret-token-%04d\n" % number for number in range(101)), "it has 101 tokens, and 100 are possible"),
        (b"#" * ((1 << 20) + 1), "it has more than 1048576 bytes"),
    ],
)
def test_content_of_an_invalid_token_file_is_not_quoted(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(ConfigInvalid) as refused:
        read_tokens(str(path))
    assert refused.value.message == f"the token file '{path}' cannot be used: {why}"
    assert "secret" not in str(refused.value)


def test_token_file_must_be_a_regular_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(ConfigInvalid, match=r"it is not a regular file|Is a directory"):
            read_tokens(str(path))
    with pytest.raises(ConfigInvalid, match="No such file or directory"):
        read_tokens(str(tmp_path / "none"))


FIRST, SECOND = "first-token-0123", "second-token-0123"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(FIRST)
    path.chmod(0o600)
    return path


def accepts(tokens: AuthTokens, token: str, group: str = "inference") -> bool:
    try:
        tokens.check(group, {"authorization": f"Bearer {token}"}.get)
    except Unauthenticated:
        return False
    return True


def test_scope_decides_which_groups_need_a_token(path: Path) -> None:
    every, admin = (AuthTokens(str(path), scope) for scope in (Scope.ALL, Scope.ADMIN))
    assert {group for group in (*GROUPS, "") if not every.requires(group)} == {"health"}
    needed = {"shared-memory", "model-repository", "trace", "logging"}
    assert {group for group in (*GROUPS, "") if admin.requires(group)} == needed
    every.check("health", {}.get)
    admin.check("inference", {}.get)


@pytest.mark.parametrize("token", [FIRST[:-1], FIRST + "4", FIRST.upper(), SECOND, f"{FIRST},Bearer {FIRST}", "\u20ac"])
def test_only_a_complete_token_is_accepted(token: str, path: Path) -> None:
    with pytest.raises(Unauthenticated, match="the bearer token is not accepted") as refused:
        AuthTokens(str(path), Scope.ALL).check("trace", {"authorization": f"Bearer {token}"}.get)
    assert refused.value.challenge == 'Bearer realm="trident", error="invalid_token"'
    assert token not in f"{refused.value.message}{refused.value.hint}"


def test_tokens_are_replaced_by_those_of_the_changed_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trident.server")
    tokens = AuthTokens(str(path), Scope.ALL)
    path.write_text(f"{FIRST}\n{SECOND}")
    tokens.read_again()
    assert (accepts(tokens, FIRST), accepts(tokens, SECOND)) == (True, True)
    path.write_text(SECOND)
    tokens.read_again()
    assert (accepts(tokens, FIRST), accepts(tokens, SECOND)) == (False, True)
    path.write_text("")
    tokens.read_again()
    assert (accepts(tokens, FIRST), accepts(tokens, SECOND)) == (False, True)
    path.unlink()
    tokens.read_again()
    assert accepts(tokens, SECOND)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "ERROR", "ERROR"]
    assert FIRST not in caplog.text + repr(tokens.__dict__)
    assert SECOND not in caplog.text + repr(tokens.__dict__)


def test_restarted_process_reads_the_current_tokens(path: Path) -> None:
    tokens = AuthTokens(str(path), Scope.ALL)
    worker = os.fork()
    if not worker:
        path.write_text(SECOND)
        tokens.read_again()
        path.write_text("")
        os._exit(0)
    os.waitpid(worker, 0)
    restarted = os.fork()
    if not restarted:
        tokens.read_again()
        os._exit(0 if (accepts(tokens, FIRST), accepts(tokens, SECOND)) == (False, True) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(restarted, 0)[1]) == 0


def test_a_restricted_header_has_names_and_a_hidden_value() -> None:
    assert parse_restricted(["health,model-config:admin-key=a=b:c"]) == (
        RestrictedApi(("health", "model-config"), "admin-key", "a=b:c"),
    )
    assert "hidden" not in repr(RestrictedApi(("health",), "key", "hidden"))
    restrictions = Restrictions([RestrictedApi(("health",), "key", "")])
    restrictions.check("health", {"key": ""}.get)
    with pytest.raises(ApiRestricted):
        restrictions.check("health", {}.get)


@pytest.mark.parametrize("option", ["health", "health:key", "health=secret", "health:=secret"])
def test_a_malformed_option_is_refused_without_showing_the_value(option: str) -> None:
    with pytest.raises(ConfigInvalid, match="--http-restricted-api wants"):
        parse_restricted([option])


LONGER = {"Admin-Key": "välue2".encode().decode("latin-1")}


def test_only_the_exact_value_allows_a_group() -> None:
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
