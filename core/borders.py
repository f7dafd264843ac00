"""Catches exceptions where one part of the server calls another that is not its own.

docs/architecture.md section 10 lists the borders on a request's path. At each of them an exception of any class becomes
the error of the requests concerned, or ends a callback that nothing depends on; it is logged once, with its traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from trident.core.errors import UNEXPECTED, ServerError, UnexpectedError

_log = logging.getLogger("trident.borders")


def expected(error: BaseException, subject: str) -> ServerError:
    """Return the error for the client: `error` itself if it is a ServerError, without its traceback.

    Any other exception is logged here, with its traceback and `subject`, such as "a request for model 'm'".
    """
    if isinstance(error, ServerError):
        # The traceback refers to frames, and so to the tensors of the request.
        return error.with_traceback(None)
    _log.error("%s failed unexpectedly", subject, exc_info=error)
    return UnexpectedError(UNEXPECTED)


def guarded(call: Callable[[], object], subject: str) -> None:
    """Make a call whose result nothing waits for. Never raises: exceptions are logged, with `subject`."""
    try:
        call()
    except Exception:
        _log.exception("%s failed unexpectedly", subject)


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or its class name if the text is empty or `__str__` raises."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
