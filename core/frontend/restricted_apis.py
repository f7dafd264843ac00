"""Restricted APIs: groups of routes that are only open to requests with a certain header.

Source: spec/http.md section 10, spec/server-options.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hmac import compare_digest

from core.errors import ConfigInvalid
from core.http.errors import ApiRestricted
from core.http.reply import RECEIVED_HEADERS_KEY, Environ

GROUPS = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
# WSGI keeps these two without the prefix of all others.
_WITHOUT_PREFIX = {"CONTENT_TYPE", "CONTENT_LENGTH"}


@dataclass(frozen=True, slots=True)
class RestrictedApi:
    """Groups that want the header `header: value`."""

    groups: tuple[str, ...]
    header: str
    value: str = field(repr=False)


def parse_restricted(options: Iterable[str]) -> tuple[RestrictedApi, ...]:
    """Values of --http-restricted-api, `<group>[,<group>…]:<header>=<value>`. Raises ConfigInvalid."""
    parsed = tuple(_parse(option) for option in options)
    seen: set[str] = set()
    for group in (group for api in parsed for group in api.groups):
        if group in seen:
            raise ConfigInvalid(f"restricted api '{group}' can not be specified in multiple config groups")
        seen.add(group)
    return parsed


def _parse(option: str) -> RestrictedApi:
    names, colon, pair = option.partition(":")
    header, equals, value = pair.partition("=")
    if not (colon and equals and header):
        # Without what was given: it may hold the secret.
        raise ConfigInvalid(
            "--http-restricted-api wants '<restricted-apis>:<restricted-key>=<restricted-value>', "
            f"got '{names}' without the rest"
        )
    groups = tuple(names.split(","))
    for group in groups:
        if group not in GROUPS:
            raise ConfigInvalid(f"unknown restricted api '{group}' ", hint=f"one of {', '.join(GROUPS)}")
    return RestrictedApi(groups, header, value)


class Restrictions:
    """Whether a request may use a group. False if nothing is restricted, so that the hot path need not ask."""

    def __init__(self, apis: Iterable[RestrictedApi]) -> None:
        self._by_group = {group: (api.header, api.value.encode()) for api in apis for group in api.groups}

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def check(self, group: str, environ: Environ) -> None:
        """Raise ApiRestricted unless the request carries the header that `group` wants, with exactly its value."""
        wanted = self._by_group.get(group)
        if wanted is None:
            return
        header, value = wanted
        given = _value_of(header, environ)
        # WSGI text is Latin-1. The comparison takes as long for a near miss as for any other.
        if given is None or not compare_digest(given.encode("latin-1", "replace"), value):
            raise ApiRestricted(header)


def _value_of(header: str, environ: Environ) -> str | None:
    received: list[tuple[str, str]] | None = environ.get(RECEIVED_HEADERS_KEY)
    if received is not None and "_" in header:
        # WSGI's keys tell no underscore from a hyphen.
        return next((value for name, value in received if name.lower() == header.lower()), None)
    key = header.upper().replace("-", "_")
    value: str | None = environ.get(key if key in _WITHOUT_PREFIX else f"HTTP_{key}")
    return value
