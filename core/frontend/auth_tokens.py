"""Bearer tokens: who calls a group of routes must show one that is in a file.

Source: docs/spec/server-options.md "In Trident"; RFC 6750.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from hmac import compare_digest

from core.errors import ConfigInvalid, ErrorCode, ServerError
from core.frontend.restricted_apis import HEALTH
from core.frontend.token_file import DIGEST_SIZE, MOST_TOKENS, digest_of, read_tokens
from core.interprocess.shared_note import SharedNote

HEADER = "authorization"
_SCHEME = "bearer"
# The groups through which a client changes the server.
ADMIN = frozenset({"shared-memory", "model-repository", "trace", "logging"})
_log = logging.getLogger("trident.server")


class Scope(Enum):
    """Which groups require a token. No scope has health: the probes of a platform have no token."""

    ADMIN = "admin"
    ALL = "all"


class Unauthenticated(ServerError):
    """The request has no bearer token, or one that is not accepted. `challenge` is the value of WWW-Authenticate."""

    code = ErrorCode.UNAVAILABLE
    before_parsing = True

    def __init__(self, *, has_token: bool) -> None:
        super().__init__(
            "the bearer token is not accepted" if has_token else "a bearer token is required",
            hint="send the header 'Authorization: Bearer <token>' with a token of the server's --auth-token-file",
        )
        self.challenge = 'Bearer realm="trident"' + (', error="invalid_token"' if has_token else "")


class AuthTokens:
    """The tokens in the file at `path`, and the groups that require one of them.

    `check` may be called on any thread while `read_again` replaces the tokens. The tokens that any process of the
    server read last are kept for one that is restarted: it must not accept those of the start again. Raises
    ConfigInvalid.
    """

    def __init__(self, path: str, scope: Scope) -> None:
        self.paths = (path,)
        self._scope = scope
        self._kept = SharedNote(MOST_TOKENS * DIGEST_SIZE)
        self._digests = self._read()

    def read_again(self) -> None:
        """Accept the tokens that are in the file now, and no others. If it cannot be used, those from before stay."""
        try:
            self._digests = self._read()
        except ConfigInvalid as error:
            kept = self._kept.read()
            self._digests = tuple([kept[at : at + DIGEST_SIZE] for at in range(0, len(kept), DIGEST_SIZE)])
            _log.error("%s; the tokens from before stay valid", error.message)
        else:
            _log.info("the token file '%s' was read again; tokens: %d", self.paths[0], len(self._digests))

    def _read(self) -> tuple[bytes, ...]:
        found = read_tokens(self.paths[0])
        if found.is_public:
            _log.warning("every user of this machine can read the token file '%s': use chmod 600", self.paths[0])
        self._kept.write(b"".join(found.digests))
        return found.digests

    def requires(self, group: str) -> bool:
        """Whether a call of `group` must have a token. Routes without a group, "", are not health."""
        return group in ADMIN if self._scope is Scope.ADMIN else group != HEALTH

    def check(self, group: str, header_value: Callable[[str], str | None]) -> None:
        """Raise Unauthenticated unless the request may use `group`.

        `header_value(name)` returns the value of a request header as Latin-1 text; None without the header.
        """
        if not self.requires(group):
            return
        scheme, _, token = (header_value(HEADER) or "").partition(" ")
        token = token.strip(" ")
        if scheme.lower() != _SCHEME or not token:
            raise Unauthenticated(has_token=False)
        given = digest_of(token.encode("latin-1", "replace"))
        # All are compared, each in the same time: how long it takes tells nothing.
        if not sum(compare_digest(given, digest) for digest in self._digests):
            raise Unauthenticated(has_token=True)
