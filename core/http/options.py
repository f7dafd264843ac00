"""The settings of the HTTP front end.

Source: docs/spec/server-options.md section 2 "HTTP", docs/spec/trace-and-log.md section 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.errors import ErrorHints
from core.frontend.auth_tokens import AuthTokens
from core.frontend.header_pattern import HeaderPattern, header_pattern
from core.frontend.restricted_apis import RestrictedApi


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """`max_input_size` is in bytes. `header_forward_pattern` matches a part of a header's name, ignoring case; empty
    forwards no header, and a token is never forwarded if there are `tokens`, of which a client must have one.
    `health_json`: the 200 of a health probe has a JSON body, which is otherwise empty. `allow_client_shm`: clients may
    register regions of shared memory. `error_hints` says how clients get the hint of an error.

    Raises ConfigInvalid for a pattern that is not a regular expression.
    """

    max_input_size: int = 67108864
    header_forward_pattern: str = ""
    restricted: tuple[RestrictedApi, ...] = ()
    tokens: AuthTokens | None = None
    health_json: bool = False
    allow_client_shm: bool = False
    error_hints: ErrorHints = ErrorHints.FIELD
    header_pattern: HeaderPattern | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        pattern = header_pattern(
            "http-header-forward-pattern", self.header_forward_pattern, hides_token=self.tokens is not None
        )
        object.__setattr__(self, "header_pattern", pattern)
