"""The settings of the response cache.

Source: docs/spec/schedulers.md section 3.7, docs/spec/server-options.md section 2 "Cache".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from app.settings.option import option, repeated
from app.settings.option_types import BOOLEAN, INT64_MAX, PORT, TEXT, BadValue, Kind, integer
from core.response_cache.redis.options import RedisOptions

_SECTION = "Response cache"
_FORM = "<cache name>,<setting>=<value>"
_LOCAL, _REDIS = "local", "redis"
_FORMS = "local,size=<bytes> or redis,host=<host>,port=<port>"
_MILLISECONDS = integer(0)
_REDIS_KINDS: Mapping[str, Kind[Any]] = {
    "host": TEXT,
    "port": PORT,
    "user": TEXT,
    "password": TEXT,
    "db": integer(0),
    "connect_timeout": _MILLISECONDS,
    "socket_timeout": _MILLISECONDS,
    "pool_size": integer(1, 64),
    "lookup_timeout": integer(1),
    # A request that waits for a connection spends its lookup_timeout.
    "wait_timeout": _MILLISECONDS,
    "tls_enabled": BOOLEAN,
    "cert": TEXT,
    "key": TEXT,
    "cacert": TEXT,
    "cacert_dir": TEXT,
}
_REDIS_NAMES = frozenset(each.name for each in fields(RedisOptions))
# Triton takes one setting at a time; here several may follow each other. A password may have commas.
_NEXT_SETTING = re.compile(rf",(?=(?:{'|'.join(_REDIS_KINDS)})=)")


def split_cache_setting(text: str) -> tuple[str, dict[str, Any]]:
    """The cache that one value of --cache-config is about, and its settings by name. Raises BadValue."""
    cache, _, rest = text.partition(",")
    parts = _NEXT_SETTING.split(rest) if cache == _REDIS else [rest]
    pairs = [part.partition("=")[::2] for part in parts]
    if not cache or not all(name and value for name, value in pairs):
        # It may be a password that is not in its place.
        raise BadValue(f"--cache-config option format is '{_FORM}'. Got {text if cache != _REDIS else 'redis,...'}")
    if cache == _LOCAL:
        return cache, dict([_local(*pair) for pair in pairs])
    if cache == _REDIS:
        return cache, dict([_redis(*pair) for pair in pairs])
    raise BadValue(f"there is no response cache '{cache}': use {_FORMS}")


def _local(name: str, value: str) -> tuple[str, int]:
    if name != "size":
        raise BadValue(f"the response cache 'local' has no setting '{name}': use local,size=<bytes>")
    if not value.isascii() or not value.isdigit() or not 0 < int(value[:20]) <= INT64_MAX:
        raise BadValue(
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field. "
            f"It takes a number of bytes. Got {value}"
        )
    return name, int(value)


def _redis(name: str, value: str) -> tuple[str, Any]:
    if name not in _REDIS_KINDS:
        known = ", ".join(_REDIS_KINDS)
        raise BadValue(f"the response cache 'redis' has no setting '{name}': it has {known}")
    try:
        return name, _REDIS_KINDS[name].parse(value)
    except BadValue as error:
        raise BadValue(f"the setting '{name}' of the response cache 'redis': {error}") from None


def _cache_setting(text: str) -> str:
    split_cache_setting(text)
    return text


@dataclass(frozen=True, kw_only=True, repr=False)
class ResponseCacheSettings:
    """Part of ServerSettings."""

    cache_config: tuple[str, ...] = repeated(
        "cache-config",
        Kind(_FORM, _cache_setting),
        "local,size=<bytes> keeps responses in that much memory, redis,host=<host>,port=<port> in a Redis server that "
        "several servers share, for models with response_cache { enable: true }.",
        section=_SECTION,
        secret=True,
    )
    response_cache_byte_size: int = option(
        0,
        "response-cache-byte-size",
        integer(0, INT64_MAX),
        "The same as --cache-config=local,size=<bytes>, which is the newer form; 0 is no cache.",
        section=_SECTION,
    )
    redis_username: str = option(
        "",
        "",
        TEXT,
        "User of Redis, if --cache-config has no user.",
        section=_SECTION,
        variable="TRITONCACHE_REDIS_USERNAME",
    )
    redis_password: str = option(
        "",
        "",
        TEXT,
        "Password for Redis, if --cache-config has none. Others can read a command line, but not a variable.",
        section=_SECTION,
        variable="TRITONCACHE_REDIS_PASSWORD",
        secret=True,
    )

    def cache_settings(self) -> dict[str, dict[str, Any]]:
        """The settings that --cache-config gives to each cache; the last of several values counts."""
        found: dict[str, dict[str, Any]] = {}
        for text in self.cache_config:
            cache, given = split_cache_setting(text)
            found[cache] = {**found.get(cache, {}), **given}
        return found

    @property
    def response_cache_bytes(self) -> int:
        """The size of the response cache in memory, in bytes; 0 is none."""
        local = self.cache_settings().get(_LOCAL, {})
        return int(local.get("size", self.response_cache_byte_size))

    @property
    def redis_options(self) -> RedisOptions | None:
        """The response cache in Redis; None without one. Raises TypeError without a host."""
        given = self.cache_settings().get(_REDIS)
        if given is None:
            return None
        known = {name: value for name, value in given.items() if name in _REDIS_NAMES}
        return RedisOptions(**{"user": self.redis_username, "password": self.redis_password, **known})
