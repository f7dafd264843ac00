"""Sessions: the requests of a stateful session of the platform are a sequence of the model.

The header `X-Amzn-SageMaker-Session-Id: NEW_SESSION` opens a session: its request is the START of a sequence, and the
answer names the session and when it expires. Requests with that id follow in the sequence, and the one that is its END
closes the session. An id holds the sequence's number and the expiry, so that any front end knows a session.
Source: docs/spec/sagemaker.md sections A3 and A7.
"""

from __future__ import annotations

import re
import secrets
import time

from trident.adapters.sagemaker.settings import SESSIONS_EXPIRATION, SageMakerSettings
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.reply import Environ, Headers
from trident.core.inference.request import InferenceRequest
from trident.core.inference.tensors import BYTES

SESSION_ID = "X-Amzn-SageMaker-Session-Id"
NEW_SESSION_ID = "X-Amzn-SageMaker-New-Session-Id"
CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"
SEQUENCE_END = "sequence_end"
SESSION_KEY = "trident.sagemaker.session"
_HEADER_KEY = "HTTP_X_AMZN_SAGEMAKER_SESSION_ID"
_NEW = "NEW_SESSION"
_ID = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,10})")
_NUMBER_BITS = 63


class Session:
    """What one request is in its session. Not thread-safe."""

    __slots__ = ("_expires_s", "_id", "_is_closed", "_is_new", "_is_text", "_number", "_starts")

    def __init__(self, number: int, expires_s: int, *, is_new: bool, is_text: bool) -> None:
        self._number = number
        self._expires_s = expires_s
        self._id = f"{number:x}-{expires_s:x}"
        self._is_new = self._starts = is_new
        self._is_text = is_text
        self._is_closed = False

    def join(self, request: InferenceRequest, *, ends: bool) -> None:
        """Make `request` the next one of the sequence; a body of lines has several.

        Raises InvalidRequest if it names another sequence, or comes behind the END.
        """
        if request.correlation_id:
            raise InvalidRequest(
                f"the request has both the header {SESSION_ID} and the parameter sequence_id",
                hint="a session is a sequence and has its id: leave out sequence_id",
            )
        if self._is_closed:
            raise InvalidRequest(
                "the session is closed before the last line of the body",
                hint="close it with the parameter sequence_end of the last line",
            )
        request.correlation_id = self._id if self._is_text else self._number
        request.sequence_start = self._starts or request.sequence_start
        request.sequence_end = self._is_closed = ends or request.sequence_end
        self._starts = False

    def headers(self) -> Headers:
        """What the answer says of the session: that it is new, or closed."""
        found: Headers = []
        if self._is_new:
            expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._expires_s))
            found.append((NEW_SESSION_ID, f"{self._id}; Expires={expiry}"))
        if self._is_closed:
            found.append((CLOSED_SESSION_ID, self._id))
        return found


def session_of(environ: Environ, spec: ModelSpec, settings: SageMakerSettings) -> Session | None:
    """The session of a request, which `environ` keeps for its inference requests; None if it names none, or if the
    model sees to its sessions itself.

    Raises InvalidRequest for a session that nobody opened here or that has expired.
    """
    text = environ.get(_HEADER_KEY)
    if text is None:
        return None
    applies = spec.sequence is not None if settings.sessions is None else settings.sessions
    if not applies:
        return None
    environ[SESSION_KEY] = session = _session(text, spec, settings)
    return session


def _session(text: str, spec: ModelSpec, settings: SageMakerSettings) -> Session:
    control = None if spec.sequence is None else spec.sequence.correlation_id
    is_text = control is not None and control.datatype is BYTES
    now_s = int(time.time())
    if text == _NEW:
        number = secrets.randbits(_NUMBER_BITS) or 1
        return Session(number, now_s + settings.session_expiration_s, is_new=True, is_text=is_text)
    found = _ID.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"there is no session '{text[:80]}'", hint=f"open one with {SESSION_ID}: {_NEW}")
    number, expires_s = (int(part, 16) for part in found.groups())
    if expires_s < now_s:
        raise InvalidRequest(
            f"the session '{text}' has expired",
            hint=f"open another one; {SESSIONS_EXPIRATION} is the life of a session in seconds",
        )
    return Session(number, expires_s, is_new=False, is_text=is_text)
