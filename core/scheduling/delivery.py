"""Handing responses to the callers of requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse

_log = logging.getLogger("trident.scheduling")

Respond = Callable[[PendingRequest, InferenceResponse], None]


def deliver(pending: PendingRequest, response: InferenceResponse) -> None:
    """Call the request's `on_response`, on the calling thread.

    An exception of the callback is only logged: a fault of a front end must not end the instance thread, and must not
    keep the other requests of the batch from their responses.
    """
    try:
        pending.on_response(response)
    except Exception:
        _log.exception("the response callback of a request for model '%s' failed", pending.request.model_name)


def flush(requests: Iterable[PendingRequest]) -> None:
    """Have the callers of answered requests send the responses that they collected: one call for each caller."""
    for each in {pending.flush for pending in requests}:
        if each is not None:
            each()
