"""Which headers, or metadata, of a request are forwarded as its parameters.

Source: docs/spec/server-options.md section 2, `http-header-forward-pattern` and `grpc-header-forward-pattern`.
"""

from __future__ import annotations

import re

from core.errors import ConfigInvalid
from core.frontend.auth_tokens import HEADER


class HeaderPattern:
    """Matches a part of a name, ignoring case. If it `hides_token`, the header with the bearer token does not match: it
    is for the server, not for a model."""

    def __init__(self, pattern: re.Pattern[str], *, hides_token: bool) -> None:
        self._search = pattern.search
        self._hidden = HEADER if hides_token else ""

    def matches(self, name: str) -> bool:
        return self._search(name) is not None and name.lower() != self._hidden


def header_pattern(option: str, pattern: str, *, hides_token: bool = False) -> HeaderPattern | None:
    """The value of the option; None if it is empty. Raises ConfigInvalid that names the option."""
    if not pattern:
        return None
    try:
        return HeaderPattern(re.compile(pattern, re.IGNORECASE), hides_token=hides_token)
    except re.error as error:
        raise ConfigInvalid(f"--{option} is not a regular expression: '{pattern}': {error}") from error
