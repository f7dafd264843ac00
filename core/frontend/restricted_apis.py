"""Restricted APIs: groups of routes that only requests with a certain header may use. gRPC calls them protocols.

Source: docs/spec/http.md section 10, docs/spec/grpc.md section 2, docs/spec/server-options.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hmac import compare_digest

from core.errors import ConfigInvalid, ErrorCode, ServerError

# The group of the routes that probes ask for.
HEALTH = "health"
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
    """What differs between the front ends: the option, Triton's word, and what stands before a key in a header."""

    option: str
    word: str
    prefix: str = ""


HTTP = RestrictedKind("--http-restricted-api", "API")
GRPC = RestrictedKind("--grpc-restricted-protocol", "protocol", "triton-grpc-protocol-")


class ApiRestricted(ServerError):
    """The request lacks the header that opens the API."""

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
    if not (colon and equals and header):
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
    """Decides whether a request may use a group."""

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
