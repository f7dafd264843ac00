"""The size limits of requests and responses, and a warning where a body is too large for some endpoints.

Source: docs/spec/vertex.md section A4: 1.5 MB each way on a shared public endpoint, 10 MB on all others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from core.errors import InvalidRequest
from core.http.reply import BODY_KEY, Environ
from core.inference.tensors import Buffer

SHARED_ENDPOINT_BYTES = 1_500_000
_SECONDS_BETWEEN_WARNINGS = 60.0
_log = logging.getLogger("trident.vertex")

Now = Callable[[], float]


def received_size(environ: Environ) -> int:
    """The bytes of a request's body as sent; 0 if the server cannot know them before it reads the body."""
    body: Buffer | None = environ.get(BODY_KEY)
    length: str = environ.get("CONTENT_LENGTH") or ""
    return len(body) if body is not None else int(length) if length.isdecimal() else 0


class SizeLimits:
    """`request` and `response` are the most bytes of a body, 0 for no limit. Hub thread, or any one thread."""

    def __init__(self, request: int, response: int, now: Now = time.monotonic) -> None:
        self._request = request
        self._response = response
        self._now = now
        self._next_warnings = {"request": float("-inf"), "response": float("-inf")}

    def check_request(self, size: int) -> None:
        """Raises InvalidRequest for a body over the limit."""
        if self._request and size > self._request:
            raise InvalidRequest(
                f"the request has {size} bytes, at most {self._request} are allowed",
                hint="send fewer instances at once; --vertex-ai-max-request-size is the limit",
            )
        if size > SHARED_ENDPOINT_BYTES:
            self._warn("request", size)

    def check_response(self, size: int) -> None:
        """Raises InvalidRequest for a body over the limit."""
        if self._response and size > self._response:
            raise InvalidRequest(
                f"the response has {size} bytes, at most {self._response} are allowed",
                hint="send fewer instances at once, or name the outputs that are needed in 'parameters.outputs'; "
                "--vertex-ai-max-response-size is the limit",
            )
        if size > SHARED_ENDPOINT_BYTES:
            self._warn("response", size)

    def _warn(self, kind: str, size: int) -> None:
        """Warn once a minute for each kind: under load every request would write a line."""
        now = self._now()
        if now >= self._next_warnings[kind]:
            self._next_warnings[kind] = now + _SECONDS_BETWEEN_WARNINGS
            _log.warning(
                "a %s of %d bytes is more than the %d that a shared public endpoint lets through",
                kind,
                size,
                SHARED_ENDPOINT_BYTES,
            )
