"""The settings of the gRPC front end.

Source: docs/spec/server-options.md section 2 "gRPC", docs/spec/trace-and-log.md section 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.errors import ConfigInvalid, ErrorHints
from core.frontend.auth_tokens import AuthTokens
from core.frontend.header_pattern import HeaderPattern, header_pattern
from core.frontend.restricted_apis import RestrictedApi
from core.grpc.compression import LEVELS

LARGEST_MESSAGE = 2147483647


@dataclass(frozen=True, kw_only=True)
class GrpcOptions:
    """`max_message_size` is in bytes, of one message without its prefix; `max_unfinished_size` is the limit of
    UnfinishedMessages. `header_forward_pattern` matches a part of a metadata name, ignoring case; empty forwards
    nothing, and a token is never forwarded if there are `tokens`, of which a client must have one.
    `compression_level` is one of `LEVELS`. `reflection` tells clients the services and their messages.
    `stream_requests` is how many requests of one stream may be in flight: a client that sends more waits.
    `allow_client_shm`: clients may register regions of shared memory. `error_hints` says how they get the hint of an
    error.

    Raises ConfigInvalid.
    """

    max_message_size: int = LARGEST_MESSAGE
    max_unfinished_size: int = 512 << 20
    header_forward_pattern: str = ""
    restricted: tuple[RestrictedApi, ...] = ()
    tokens: AuthTokens | None = None
    compression_level: str = "none"
    reflection: bool = True
    stream_requests: int = 1024
    allow_client_shm: bool = False
    error_hints: ErrorHints = ErrorHints.FIELD
    header_pattern: HeaderPattern | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.compression_level not in LEVELS:
            raise ConfigInvalid(f"'{self.compression_level}' is no compression level, one of {', '.join(LEVELS)}")
        pattern = header_pattern(
            "grpc-header-forward-pattern", self.header_forward_pattern, hides_token=self.tokens is not None
        )
        object.__setattr__(self, "header_pattern", pattern)
