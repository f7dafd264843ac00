"""What a Vertex AI endpoint serves: the default model, within the limits that the settings give.

Source: docs/spec/vertex.md sections A4 and B2.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from trident.adapters.vertex.settings import VertexSettings
from trident.core.engine.protocol import Engine
from trident.core.errors import DeadlineExceeded, ErrorCode, InvalidRequest, ServerError
from trident.core.frontend.bridge import Bridge, ClientGone
from trident.core.frontend.request import DefaultModel, version_number
from trident.core.http.reply import BODY_KEY, CLIENT_GONE_KEY, Environ
from trident.core.inference.tensors import Buffer


class RedirectUnknown(InvalidRequest):
    pass


class RedirectForbidden(ServerError):
    code = ErrorCode.INVALID_ARG


# Source: docs/spec/vertex.md section A4 (timeouts), D point 6.


Now = Callable[[], float]


class Deadline:
    """Takes the place of the check whether the client is gone, which the bridge calls. Any thread.

    A call raises DeadlineExceeded `seconds` after the object was made. An execution that runs by then continues, and
    its responses are dropped.
    """

    __slots__ = ("_client_gone", "_end", "_now", "_seconds")

    def __init__(self, seconds: float, client_gone: ClientGone | None, now: Now = time.monotonic) -> None:
        self._client_gone = client_gone
        self._now = now
        self._seconds = seconds
        self._end = now() + seconds

    def __call__(self) -> bool:
        if self._now() >= self._end:
            raise DeadlineExceeded(
                f"there was no answer within {self._seconds:g} seconds", hint="--vertex-ai-timeout-secs is the limit"
            )
        return self._client_gone is not None and self._client_gone()


def set_deadline(environ: Environ, seconds: float) -> None:
    """Set the deadline of the request in `environ` to `seconds` from now; 0 sets none."""
    if seconds:
        environ[CLIENT_GONE_KEY] = Deadline(seconds, environ.get(CLIENT_GONE_KEY))


# Source: docs/spec/vertex.md section A4: 1.5 MB each way on a shared public endpoint, 10 MB on all others.


SHARED_ENDPOINT_BYTES = 1_500_000
_SECONDS_BETWEEN_WARNINGS = 60.0
_log = logging.getLogger("trident.vertex")


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


_CURE = "name one in --vertex-ai-default-model, or in 'parameters.model' of a request with instances"


class VertexEndpoint:
    """The state that the routes of one container share. Hub thread, or any one thread.

    `key_fields` are the members of an object instance that are no inputs.
    """

    def __init__(
        self, engine: Engine, bridge: Bridge, settings: VertexSettings, routed_model: str = "", routed_version: str = ""
    ) -> None:
        """`routed_model` and `routed_version` are named in the predict route, as images for v2 alone needed it; or "".

        Raises InvalidRequest for version 0.
        """
        self.settings = settings
        self.limits = SizeLimits(settings.max_request_size, settings.max_response_size)
        self.key_fields = frozenset((settings.key_field,)) if settings.key_field else frozenset()
        name = settings.default_model or routed_model
        self.default_model = DefaultModel(engine, bridge, name, _CURE)
        self.default_version = version_number(routed_version if name == routed_model else "")
