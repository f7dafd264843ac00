"""What a client did wrong, as exceptions. Only those that end the connection leave the layer."""

from __future__ import annotations

from app.worker.http2.error_codes import ErrorCode


class ConnectionFault(Exception):
    """The connection must end: the two sides no longer agree on its state, or the client does not behave.

    The text is for the log and for the client's GOAWAY. Source: RFC 9113 section 5.4.1.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """One stream must end, and the connection goes on. Source: RFC 9113 section 5.4.2."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
