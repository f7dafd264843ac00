"""Inference on request lines: JSON documents, one on each line, each answered in order as if it were alone.

All lines are submitted to the engine together, so that they form batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest
from core.frontend.infer_many import infer_many
from core.frontend.request_parameters import read_parameters
from core.http.access_note import note_inference
from core.http.application import V2Application
from core.http.payloads.body_kind import starts_as_v2
from core.http.payloads.error_location import line_name
from core.http.payloads.formats import JSON, JSONLINES, NPY, NPZ, NotAcceptable
from core.http.payloads.inference import (
    check_convertible,
    check_size,
    content_of,
    converted,
    requests_of,
    result_of,
)
from core.http.payloads.json.decoder import decode_json
from core.http.payloads.json.document_form import DocumentForm, document_form
from core.http.payloads.payload import DecodeRules
from core.http.reply import CLIENT_GONE_KEY, Environ, Reply
from core.http.slices.slicing import Slicing
from core.http.trace_note import note_traces
from core.http.v2.request_codec import decode_request
from core.http.v2.response_codec import encode_response
from core.http.views.infer import finish, prepare
from core.http.views.long_text import is_long, slicing_of
from core.inference.request import InferenceRequest, Parameter
from core.inference.response import InferenceResponse
from core.inference.times import InferenceTimes

_LATEST = -1
# An encoded document does not end with a line break; encoded rows do.
_BREAK = b"\n"
_ARRAYS = (*NPY.media_types, *NPZ.media_types)

Answer = Callable[[list[InferenceResponse]], bytes]
# The media type of the answer to a line, given whether it is of the v2 protocol; None for a v2 response.
AnswerType = Callable[[bool], str | None]


def infer_lines(
    application: V2Application, environ: Environ, spec: ModelSpec, lines: list[bytes], answer_type: AnswerType
) -> Reply:
    """Run the documents on the latest version. Raises ServerError if any of them fails.

    `answer_type` is called on a native thread.
    """
    check_size(application, sum(map(len, lines)))
    work = _Lines(application, environ, spec, answer_type)
    content, media_type, parameters, times = application.bridge.run_long(work.run, lines)
    return finish(application, environ, [content], [("Content-Type", media_type)], parameters, times)


class _Lines:
    """The lines of one body. Its methods run on a native thread."""

    def __init__(self, application: V2Application, environ: Environ, spec: ModelSpec, answer_type: AnswerType) -> None:
        self._application = application
        self._environ = environ
        self._spec = spec
        self._answer_type = answer_type
        self._limit = application.options.max_input_size
        self._slicing = slicing_of(environ)
        # For each line the number of its requests, and the function that makes its answer from their responses.
        self._answers: list[tuple[int, Answer]] = []

    def run(self, lines: list[bytes]) -> tuple[bytes, str, dict[str, Parameter] | None, InferenceTimes | None]:
        """The body of the reply, its media type, the parameters of the first response, and the longest times of all."""
        client_gone = self._environ.get(CLIENT_GONE_KEY)
        responses = infer_many(self._application.engine, self._requests(lines), client_gone)
        content = bytearray()
        start = 0
        for count, answer in self._answers:
            text = answer(responses[start : start + count])
            content += text if text.endswith(_BREAK) else text + _BREAK
            start += count
        media_type = self._type(_is_v2(lines[0]))
        if media_type is None or media_type in JSON.media_types:
            media_type = JSONLINES.media_types[0]
        times = note_inference(self._environ, responses)
        note_traces(self._environ, responses)
        return bytes(content), media_type, responses[0].parameters, times

    def _requests(self, lines: list[bytes]) -> Iterator[InferenceRequest]:
        for index, line in enumerate(lines):
            try:
                requests, answer = self._read(line)
            except InvalidRequest as error:
                raise type(error)(f"{line_name(index)}: {error.message}", hint=error.hint) from error
            self._answers.append((len(requests), answer))
            yield from requests

    def _read(self, line: bytes) -> tuple[list[InferenceRequest], Answer]:
        is_v2 = _is_v2(line)
        media_type = self._type(is_v2)
        if not is_v2:
            return self._instances(line, media_type or JSON.media_types[0])
        return self._v2(line) if media_type is None else self._converted(line, media_type)

    def _type(self, is_v2: bool) -> str | None:
        chosen = self._answer_type(is_v2)
        if chosen in _ARRAYS:
            raise NotAcceptable(f"answers in {chosen} cannot be joined line by line", hint="ask for JSON or CSV")
        return chosen

    def _v2(self, line: bytes) -> tuple[list[InferenceRequest], Answer]:
        spec = self._spec
        request, plan = decode_request(line, None, _LATEST, spec, self._limit, self._slicing_for(line))
        if any(plan.form_of(name)[0] for name in request.outputs or spec.outputs):
            raise InvalidRequest("an answer of lines cannot have binary outputs")
        prepare(self._application, self._environ, request)
        return [request], lambda responses: b"".join(encode_response(responses[0], plan, spec)[0])

    def _converted(self, line: bytes, media_type: str) -> tuple[list[InferenceRequest], Answer]:
        spec = self._spec
        request, plan = decode_request(line, None, _LATEST, spec, self._limit, self._slicing_for(line))
        check_convertible(request, spec, media_type)
        prepare(self._application, self._environ, request)
        return [request], lambda responses: b"".join(
            content_of(converted(request, responses[0], plan, spec).columns, media_type, None)
        )

    def _slicing_for(self, line: bytes) -> Slicing | None:
        return self._slicing if is_long(len(line), self._spec) else None

    def _instances(self, line: bytes, media_type: str) -> tuple[list[InferenceRequest], Answer]:
        payload = decode_json(
            line, self._spec, DecodeRules(max_input_size=self._limit, slicing=self._slicing_for(line))
        )
        pattern = InferenceRequest(self._spec.name, [])
        if payload.parameters:
            read_parameters(payload.parameters, pattern)
        prepare(self._application, self._environ, pattern)
        return list(requests_of(payload, self._spec, pattern)), lambda responses: b"".join(
            content_of(result_of(responses, payload).columns, media_type, payload.form)
        )


def _is_v2(line: bytes) -> bool:
    return starts_as_v2(line) or document_form(line) is DocumentForm.V2
