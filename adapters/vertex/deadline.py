"""The time limit of a request: after it the client gets an error, and requests that are still queued do not run.

Source: docs/spec/vertex.md section A4 (timeouts), D point 6.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from core.errors import DeadlineExceeded
from core.frontend.bridge import ClientGone
from core.http.reply import CLIENT_GONE_KEY, Environ

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
