"""What the worker and the views note about a traced request. The notes are entries of the request's environ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from core.frontend.trace_events import HTTP, NOT_NOTED, Span, end_trace
from core.http.front_end import HttpFrontEnd
from core.http.reply import Environ
from core.inference.response import InferenceResponse

RECEIVED_KEY: Final = "trident.received_ns"
"""When our worker began to receive the request, and when it had it; only while requests may be traced."""
TRACES_KEY: Final = "trident.traces"
"""The numbers of the traces of the requests that the body had."""


def note_traces(environ: Environ, responses: Sequence[InferenceResponse]) -> None:
    """Note the traces of requests by their responses."""
    numbers = [response.trace for response in responses if response.trace]
    if numbers:
        environ.setdefault(TRACES_KEY, []).extend(numbers)


def end_traces(front_end: HttpFrontEnd, environ: Environ, sent: Span = NOT_NOTED) -> None:
    """End the traces of a request whose response was sent, or (without `sent`) whose client has gone."""
    received = environ.get(RECEIVED_KEY, NOT_NOTED)
    for number in environ.pop(TRACES_KEY):
        end_trace(front_end.engine, number, HTTP, received, sent)
