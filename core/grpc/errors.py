"""Errors that only gRPC knows.

    ServerError
    └── MalformedMessage   INTERNAL   the bytes are no message of the call's type

Source: grpc's C++ server, which cancels such a call with this status and text.
"""

from __future__ import annotations

from core.errors import ErrorCode, ServerError


class MalformedMessage(ServerError):
    code = ErrorCode.INTERNAL
    blames_client = True

    def __init__(self) -> None:
        super().__init__(
            "Unable to parse request", hint="the message does not follow grpc_service.proto, or it is cut off"
        )
