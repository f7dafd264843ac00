"""Access to groups of routes: bearer tokens from a file, and Triton's restricted APIs.

Source: docs/spec/server-options.md "In Trident"; RFC 6750.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple

from trident.core.config.problem import open_file
from trident.core.errors import ConfigInvalid, ErrorCode, ServerError
from trident.core.interprocess.restarts import SharedNote

MOST_TOKENS = 100
SHORTEST = 16
_MOST_BYTES = 1 << 20
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_HINT = "one token a line, for example from: openssl rand -hex 32"


class TokenFile(NamedTuple):
    """The SHA-256 digests of the tokens, and whether every user of the machine may read the file."""

    digests: tuple[bytes, ...]
    is_public: bool


def read_tokens(path: str) -> TokenFile:
    """Read the file at `path`. Raises ConfigInvalid if it cannot be read, has no token, or a line is not one."""
    tokens = []
    content, is_public = _read(path)
    for number, line in enumerate(content.splitlines(), 1):
        token = line.strip()
        if not token or token.startswith(b"#"):
            continue
        if not _TOKEN.fullmatch(token):
            raise _unusable(path, f"line {number} has characters that no bearer token may have")
        if len(token) < SHORTEST:
            raise _unusable(path, f"the token in line {number} has less than {SHORTEST} characters")
        tokens.append(digest_of(token))
    if not tokens:
        raise _unusable(path, "it has no token")
    if len(tokens) > MOST_TOKENS:
        raise _unusable(path, f"it has {len(tokens)} tokens, and {MOST_TOKENS} are possible")
    return TokenFile(tuple(tokens), is_public)


def digest_of(token: bytes) -> bytes:
    """The form of a token in memory. All digests have one length, which reveals nothing about the token's."""
    return sha256(token).digest()


DIGEST_SIZE = sha256().digest_size


def _read(path: str) -> tuple[bytes, bool]:
    try:
        with open_file(Path(path)) as file:
            state = os.fstat(file.fileno())
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    if len(content) > _MOST_BYTES:
        raise _unusable(path, f"it has more than {_MOST_BYTES} bytes")
    return content, bool(state.st_mode & stat.S_IROTH)


def _unusable(path: str, why: str) -> ConfigInvalid:
    return ConfigInvalid(f"the token file '{path}' cannot be used: {why}", hint=_HINT)


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
    """The request has no valid bearer token. `challenge` is the value of WWW-Authenticate."""

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
        """Accept the tokens that are in the file now, and no others. If it is unusable, keep the previous tokens."""
        try:
            self._digests = self._read()
        except ConfigInvalid as error:
            kept = self._kept.read()
            self._digests = tuple([kept[at : at + DIGEST_SIZE] for at in range(0, len(kept), DIGEST_SIZE)])
            _log.error("%s; keeping the previous tokens", error.message)
        else:
            _log.info("the token file '%s' was read again; tokens: %d", self.paths[0], len(self._digests))

    def _read(self) -> tuple[bytes, ...]:
        found = read_tokens(self.paths[0])
        if found.is_public:
            _log.warning("every user of this machine can read the token file '%s': use chmod 600", self.paths[0])
        self._kept.write(b"".join(found.digests))
        return found.digests

    def requires(self, group: str) -> bool:
        """True if a call of `group` needs a token. Routes without a group, "", are not health."""
        return group in ADMIN if self._scope is Scope.ADMIN else group not in (HEALTH, PAGE)

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


# Source: docs/spec/http.md section 10, docs/spec/grpc.md section 2, docs/spec/server-options.md section 3.


# The group of the routes that probes ask for.
HEALTH = "health"
# The files of the console, which are the same for everyone; what the page shows has its own groups.
PAGE = "page"
GROUPS = (
    HEALTH,
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)


@dataclass(frozen=True, slots=True)
class RestrictedKind:
    """The differences between the front ends: the option, Triton's word, and the prefix of a key in a header."""

    option: str
    word: str
    prefix: str = ""


HTTP = RestrictedKind("--http-restricted-api", "API")
GRPC = RestrictedKind("--grpc-restricted-protocol", "protocol", "triton-grpc-protocol-")


class ApiRestricted(ServerError):
    code = ErrorCode.UNAVAILABLE
    before_parsing = True

    def __init__(self, header: str, word: str = HTTP.word) -> None:
        super().__init__(f"This {word} is restricted, expecting header '{header}'")


@dataclass(frozen=True, slots=True)
class RestrictedApi:
    """Groups that require the header `header: value`."""

    groups: tuple[str, ...]
    header: str
    value: str = field(repr=False)


def parse_restricted(options: Iterable[str], kind: RestrictedKind = HTTP) -> tuple[RestrictedApi, ...]:
    """Values of the option of `kind`, `<group>[,<group>…]:<header>=<value>`. Raises ConfigInvalid."""
    parsed = tuple(_parse(option, kind) for option in options)
    seen: set[str] = set()
    for group in (group for api in parsed for group in api.groups):
        if group in seen:
            raise ConfigInvalid(
                f"restricted {kind.word.lower()} '{group}' can not be specified in multiple config groups"
            )
        seen.add(group)
    return parsed


def _parse(option: str, kind: RestrictedKind) -> RestrictedApi:
    names, colon, pair = option.partition(":")
    header, equals, value = pair.partition("=")
    if not (colon and equals and header and value):
        # The text does not quote the rest of the option: it may hold the secret.
        raise ConfigInvalid(
            f"{kind.option} wants '<restricted-{kind.word.lower()}s>:<restricted-key>=<restricted-value>', "
            f"got '{names}' without the rest"
        )
    groups = tuple(names.split(","))
    for group in groups:
        if group not in GROUPS:
            raise ConfigInvalid(
                f"unknown restricted {kind.word.lower()} '{group}' ", hint=f"one of {', '.join(GROUPS)}"
            )
    return RestrictedApi(groups, kind.prefix + header, value)


class Restrictions:
    def __init__(self, apis: Iterable[RestrictedApi], kind: RestrictedKind = HTTP) -> None:
        self._word = kind.word
        self._by_group = {group: (api.header, api.value.encode()) for api in apis for group in api.groups}

    def check(self, group: str, header_value: Callable[[str], str | None]) -> None:
        """Raise ApiRestricted unless the header that `group` requires has exactly the required value.

        `header_value(name)` returns the value of a request header as Latin-1 text; None without the header.
        """
        wanted = self._by_group.get(group)
        if wanted is None:
            return
        header, value = wanted
        given = header_value(header)
        # The comparison takes as long for a near miss as for any other value.
        if given is None or not compare_digest(given.encode("latin-1", "replace"), value):
            raise ApiRestricted(header, self._word)
