"""The headers of a request in the WSGI environ."""

from __future__ import annotations

from core.http.reply import RECEIVED_HEADERS_KEY, Environ

# WSGI gives these two no prefix.
_WITHOUT_PREFIX = {"CONTENT_TYPE", "CONTENT_LENGTH"}


def header_of(environ: Environ, name: str) -> str | None:
    """The value of the header `name`, ignoring case, as Latin-1 text; None without the header."""
    received: list[tuple[str, str]] | None = environ.get(RECEIVED_HEADERS_KEY)
    if received is not None and "_" in name:
        # WSGI's keys do not distinguish an underscore from a hyphen.
        return next((value for given, value in received if given.lower() == name.lower()), None)
    key = name.upper().replace("-", "_")
    value: str | None = environ.get(key if key in _WITHOUT_PREFIX else f"HTTP_{key}")
    return value
