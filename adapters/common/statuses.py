"""The HTTP statuses that a platform's container has for errors where plain v2 has another one."""

from __future__ import annotations

from core.http.errors import UnsupportedEncoding
from core.http.payloads.formats import NotAcceptable, UnsupportedMediaType

Statuses = tuple[tuple[type[Exception], int], ...]

BODY_STATUSES: Statuses = ((UnsupportedMediaType, 415), (UnsupportedEncoding, 415), (NotAcceptable, 406))
"""The statuses of bodies that cannot be read, and of answers that cannot be written as the client asks."""


def status_in(statuses: Statuses, error: Exception) -> int | None:
    """The status of the first class in `statuses` that `error` is an instance of; None if there is none."""
    for kind, status in statuses:
        if isinstance(error, kind):
            return status
    return None
