"""Handing a response to the caller of a request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse

_log = logging.getLogger("trident.scheduling")

Respond = Callable[[PendingRequest, InferenceResponse], None]


def deliver(pending: PendingRequest, response: InferenceResponse) -> None:
    """Call the request's `on_response`, on the calling thread.

    What it raises is logged and goes no further: a front end's fault must not end the instance thread, nor keep the
    other requests of the batch from their responses.
    """
    try:
        pending.on_response(response)
    except Exception:
        _log.exception("the response callback of a request for model '%s' failed", pending.request.model_name)


def flush(requests: Iterable[PendingRequest]) -> None:
    """Let the front ends of requests that were answered send what they collected: once each, however many there are."""
    for each in {pending.flush for pending in requests}:
        if each is not None:
            each()
