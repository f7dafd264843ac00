"""The settings of the HTTP front end.

Source: docs/spec/server-options.md section 2 "HTTP", docs/spec/trace-and-log.md sections 1 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from core.frontend.fixed_settings import TRACE_OFF
from core.frontend.header_pattern import header_pattern
from core.frontend.restricted_apis import RestrictedApi


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """`max_input_size` is in bytes. `header_forward_pattern` matches a part of a header's name, ignoring case; empty
    forwards no header. `response_timing`: answers carry the times that the engine notes.
    `trace_settings` are shown as they are.

    Raises ConfigInvalid for a pattern that is not a regular expression.
    """

    max_input_size: int = 67108864
    header_forward_pattern: str = ""
    restricted: tuple[RestrictedApi, ...] = ()
    response_timing: bool = False
    trace_settings: Mapping[str, object] = field(default_factory=lambda: TRACE_OFF)
    header_pattern: re.Pattern[str] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "header_pattern", header_pattern("http-header-forward-pattern", self.header_forward_pattern)
        )
