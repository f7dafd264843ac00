"""The settings of the response cache.

Source: docs/spec/schedulers.md section 3.7, docs/spec/server-options.md section 2 "Cache".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.settings.option import option, repeated
from app.settings.option_types import INT64_MAX, BadValue, Kind, integer

_SECTION = "Response cache"
_FORM = "<cache name>,<setting>=<value>"


def split_cache_setting(text: str) -> tuple[str, str, str]:
    """Cache, name and value of one value of --cache-config. Raises BadValue."""
    cache, _, rest = text.partition(",")
    name, _, value = rest.partition("=")
    if not (cache and name and value):
        raise BadValue(f"--cache-config option format is '{_FORM}'. Got {text}")
    if cache != "local":
        raise BadValue(f"there is no response cache '{cache}': use local,size=<bytes>")
    if name != "size":
        raise BadValue(f"the response cache 'local' has no setting '{name}': use local,size=<bytes>")
    if not value.isascii() or not value.isdigit() or not 0 < int(value[:20]) <= INT64_MAX:
        raise BadValue(
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field. "
            f"It takes a number of bytes. Got {value}"
        )
    return cache, name, value


def cache_bytes(texts: Iterable[str]) -> int:
    """The size that the values of --cache-config ask for, in bytes; the last one counts. 0 without any."""
    sizes = [int(split_cache_setting(text)[2]) for text in texts]
    return sizes[-1] if sizes else 0


def _cache_setting(text: str) -> str:
    split_cache_setting(text)
    return text


@dataclass(frozen=True, kw_only=True, repr=False)
class ResponseCacheSettings:
    """Part of ServerSettings."""

    cache_config: tuple[str, ...] = repeated(
        "cache-config",
        Kind(_FORM, _cache_setting),
        "local,size=<bytes> keeps responses in that much memory, for models with response_cache { enable: true }.",
        section=_SECTION,
    )
    response_cache_byte_size: int = option(
        0,
        "response-cache-byte-size",
        integer(0, INT64_MAX),
        "The same as --cache-config=local,size=<bytes>, which is the newer form; 0 is no cache.",
        section=_SECTION,
    )

    @property
    def response_cache_bytes(self) -> int:
        """The size of the response cache in bytes; 0 is none."""
        return cache_bytes(self.cache_config) or self.response_cache_byte_size
