from __future__ import annotations

import os
from pathlib import Path

import pytest

from trident.core.frontend.access import GROUPS, AuthTokens, Scope, Unauthenticated

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


def test_a_scope_says_which_groups_need_a_token(path: Path) -> None:
    every, admin = (AuthTokens(str(path), scope) for scope in (Scope.ALL, Scope.ADMIN))
    assert {group for group in (*GROUPS, "") if not every.requires(group)} == {"health"}
    needed = {"shared-memory", "model-repository", "trace", "logging"}
    assert {group for group in (*GROUPS, "") if admin.requires(group)} == needed
    every.check("health", {}.get)
    admin.check("inference", {}.get)


@pytest.mark.parametrize("header", [None, "", FIRST, "Bearer", "Bearer ", f"Basic {FIRST}", f"Bearer{FIRST}"])
def test_a_request_without_a_token_is_told_to_send_one(header: str | None, path: Path) -> None:
    with pytest.raises(Unauthenticated, match="a bearer token is required") as refused:
        AuthTokens(str(path), Scope.ALL).check("trace", {"authorization": header}.get)
    assert refused.value.challenge == 'Bearer realm="trident"'


@pytest.mark.parametrize("token", [FIRST[:-1], FIRST + "4", FIRST.upper(), SECOND, f"{FIRST},Bearer {FIRST}", "\u20ac"])
def test_only_a_whole_token_is_accepted(token: str, path: Path) -> None:
    with pytest.raises(Unauthenticated, match="the bearer token is not accepted") as refused:
        AuthTokens(str(path), Scope.ALL).check("trace", {"authorization": f"Bearer {token}"}.get)
    assert refused.value.challenge == 'Bearer realm="trident", error="invalid_token"'
    assert token not in f"{refused.value.message}{refused.value.hint}"


def test_the_scheme_has_no_case(path: Path) -> None:
    AuthTokens(str(path), Scope.ALL).check("trace", {"authorization": f"bEARER  {FIRST} "}.get)


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


def test_a_process_that_is_restarted_does_not_accept_the_tokens_of_the_start(path: Path) -> None:
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


def test_a_file_that_everybody_can_read_is_warned_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.chmod(0o644)
    AuthTokens(str(path), Scope.ALL)
    assert caplog.messages == [f"every user of this machine can read the token file '{path}': use chmod 600"]
