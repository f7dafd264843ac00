"""Which headers, or metadata, of a request are forwarded as its parameters.

Source: docs/spec/server-options.md section 2, `http-header-forward-pattern` and `grpc-header-forward-pattern`.
"""

from __future__ import annotations

import re

from core.errors import ConfigInvalid


def header_pattern(option: str, pattern: str) -> re.Pattern[str] | None:
    """The value of the option, which ignores case; None if it is empty. Raises ConfigInvalid that names the option."""
    if not pattern:
        return None
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ConfigInvalid(f"--{option} is not a regular expression: '{pattern}': {error}") from error
