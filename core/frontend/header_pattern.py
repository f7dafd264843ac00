"""Which headers, or metadata, of a request are forwarded as its parameters.

A pattern has the syntax of RE2, as in Triton, whose time is linear in a name's length: names are the clients'.
Source: docs/spec/server-options.md section 2, `http-header-forward-pattern` and `grpc-header-forward-pattern`.
"""

from __future__ import annotations

from collections.abc import Callable

from core.errors import ConfigInvalid
from core.frontend.auth_tokens import HEADER
from core.memo import Memo

_LONGEST_KNOWN = 64


class HeaderPattern:
    """Matches a part of a name, ignoring case. If it `hides_token`, the header with the bearer token does not match: it
    is for the server, not for a model."""

    def __init__(self, search: Callable[[str], object], *, hides_token: bool) -> None:
        self._search = search
        self._hidden = HEADER if hides_token else ""
        self._known: Memo[str, bool] = Memo(1024)

    def matches(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._search(name) is not None and name.lower() != self._hidden
            if len(name) <= _LONGEST_KNOWN:
                self._known[name] = known
        return known


def header_pattern(option: str, pattern: str, *, hides_token: bool = False) -> HeaderPattern | None:
    """The value of the option; None if it is empty. Raises ConfigInvalid that names the option."""
    if not pattern:
        return None
    import re2  # for servers with a pattern only

    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    try:
        return HeaderPattern(re2.compile(pattern, options).search, hides_token=hides_token)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
        raise ConfigInvalid(
            f"--{option} is not a regular expression: '{pattern}': {reason}",
            hint="the syntax is RE2's: https://github.com/google/re2/wiki/Syntax",
        ) from error
