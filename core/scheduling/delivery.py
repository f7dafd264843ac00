"""Handing a response to the caller of a request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from core.inference.request import InferenceRequest, InferenceResponse

_log = logging.getLogger("trident.scheduling")

Respond = Callable[[InferenceRequest, InferenceResponse], None]


def deliver(request: InferenceRequest, response: InferenceResponse) -> None:
    """Call the request's `on_response`, on the calling thread.

    What it raises is logged and goes no further: a front end's fault must not end the instance thread, nor keep the
    other requests of the batch from their responses.
    """
    try:
        request.on_response(response)
    except Exception:
        _log.exception("the response callback of a request for model '%s' failed", request.model_name)


def flush(requests: Iterable[InferenceRequest]) -> None:
    """Let the front ends of requests that were answered send what they collected: once each, however many there are."""
    for each in {request.flush for request in requests}:
        if each is not None:
            each()
