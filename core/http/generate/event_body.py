"""The body of a stream of events, made while it is sent.

Source: docs/spec/http.md section 9.
"""

from __future__ import annotations

from collections.abc import Callable

from core.errors import BackendFailed, ErrorHints, OutOfMemory, ServerError
from core.frontend.response_stream import ResponseStream
from core.http.access_note import INFERENCE_KEY, InferenceNote, note_inference
from core.http.errors import AS_EVENT_KEY, error_event, log_error
from core.http.generate.events import event
from core.http.reply import Environ
from core.http.trace_note import note_traces
from core.inference.response import InferenceResponse


class EventBody:
    """An event for each response of `stream`; those that have arrived together are one part of the body.

    `encode` makes the JSON of a response. An error of a response is an event, too, and a line in the log; `status_of`
    gives the status for the line, and `hints` says how clients get an error's hint. Used by the thread or greenlet of
    the stream.
    """

    def __init__(
        self,
        stream: ResponseStream,
        environ: Environ,
        status_of: Callable[[Exception], int],
        encode: Callable[[InferenceResponse], bytes],
        hints: ErrorHints,
    ) -> None:
        self._stream = stream
        self._environ = environ
        self._status_of = status_of
        self._encode = encode
        self._hints = hints
        self._begun = b""

    def begin(self) -> InferenceResponse:
        """Wait for the first response and return it; afterwards the body can be sent.

        Raises the error of the first response, as an event if the model has sent it.
        """
        responses = self._stream.take()
        first = responses[0]
        note_traces(self._environ, (first,))
        self._environ[INFERENCE_KEY] = InferenceNote(first.model_name, first.model_version)
        error = first.error
        if error is not None:
            # A request that was refused has one response, too.
            if not first.final or isinstance(error, BackendFailed | OutOfMemory):
                self._environ[AS_EVENT_KEY] = True
            raise error
        try:
            text = b"" if is_empty(first) else event(self._encode(first))
        except ServerError:
            self._environ[AS_EVENT_KEY] = True
            raise
        self._begun = text + self._events(responses[1:])
        self._note(responses[-1])
        return first

    def __iter__(self) -> EventBody:
        return self

    def __next__(self) -> bytes:
        if self._begun:
            text, self._begun = self._begun, b""
            return text
        while responses := self._stream.take():
            text = self._events(responses)
            self._note(responses[-1])
            if text:
                return text
        raise StopIteration

    def close(self) -> None:
        self._stream.cancel()

    def _events(self, responses: list[InferenceResponse]) -> bytes:
        return b"".join([self._event(response) for response in responses if not is_empty(response)])

    def _event(self, response: InferenceResponse) -> bytes:
        try:
            if response.error is not None:
                raise response.error
            return event(self._encode(response))
        except ServerError as error:
            log_error(error, self._status_of(error), self._environ)
            # No cycle: the traceback refers to this frame, which refers to the response.
            error.__traceback__ = None
            return error_event(error, self._hints)

    def _note(self, last: InferenceResponse) -> None:
        if last.final and last.times is not None:
            note_inference(self._environ, (last,))


def is_empty(response: InferenceResponse) -> bool:
    """Whether the response only says that there are no more."""
    return response.final and response.error is None and not response.outputs and not response.parameters
