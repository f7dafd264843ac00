"""Inference on request lines: JSON documents, one on each line, each answered in order as if it were alone.

All lines are submitted to the engine together, so that they form batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator

from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.frontend.request import LATEST, read_parameters
from trident.core.http.application import V2Application
from trident.core.http.dataplane import complete, finish, run_many, slicing_of
from trident.core.http.payloads.formats import JSON, JSONLINES, NPY, NPZ, NotAcceptable, known_format, starts_as_v2
from trident.core.http.payloads.inference import (
    check_convertible,
    check_size,
    content_of,
    converted,
    requests_of,
    result_of,
)
from trident.core.http.payloads.json import decode_json
from trident.core.http.payloads.payload import DecodeRules, DocumentForm, document_form, line_name, parse_json
from trident.core.http.reply import Environ, Reply
from trident.core.http.v2_request import decode_request
from trident.core.http.v2_response import encode_response
from trident.core.inference.request import InferenceRequest, InferenceTimes, Parameter
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Buffer

_OBJECT = re.compile(rb"\s*\{")
_ENDS = (b"}", b"]")
_BEGINS = (b"{", b"[")
_MEMBERS = ("instances", "inputs")
# Bytes that are copied at a time to search a large body for a line break.
_CHUNK = 1 << 16


def may_be_request_lines(content_type: str, body: Buffer) -> bool:
    """Whether the body may have request lines, which `request_lines` then finds out; quick for any size."""
    known = known_format(content_type)
    if known is JSONLINES:
        return _OBJECT.match(body) is not None
    # Within one document no line that ends with a closing bracket precedes one that begins with an opening bracket.
    return known in (None, JSON) and _is_between(body, _end_of_line(body))


def request_lines(content_type: str, body: Buffer, spec: ModelSpec) -> list[bytes] | None:
    """The documents of the body, each a request of the v2 protocol or with instances; None if the body has none.

    In JSON Lines the members `instances` and `inputs` tell a request from an instance, unless an input has that name. A
    single v2 request gives None, because it is read as one under all types. Raises InvalidRequest.
    """
    known = known_format(content_type)
    end = _end_of_line(body)
    first = bytes(body[:end]) if end >= 0 else bytes(body)
    if not _is_document(first, spec.inputs if known is JSONLINES else (), bare=known is JSON):
        return None
    lines = _lines(body)
    return None if len(lines) == 1 and starts_as_v2(first) else lines


def _end_of_line(body: Buffer) -> int:
    """The position of the first line break, -1 if there is none."""
    view = memoryview(body)
    for start in range(0, len(view), _CHUNK):
        found = bytes(view[start : start + _CHUNK]).find(b"\n")
        if found >= 0:
            return start + found
    return -1


def _is_between(body: Buffer, end: int) -> bool:
    if end < 0:
        return False
    before = bytes(body[max(0, end - 2) : end]).rstrip(b"\r")
    return before.endswith(_ENDS) and bytes(body[end + 1 : end + 2]) in _BEGINS


def _is_document(line: bytes, taken: Container[str], *, bare: bool) -> bool:
    """Whether the line is a request. Members in `taken` are inputs; `bare`: an array is a request, too."""
    if not bare and not any(f'"{name}"'.encode() in line for name in _MEMBERS):
        return False
    try:
        document = parse_json(line)
    except InvalidRequest:
        return False
    if type(document) is list:
        return bare
    return type(document) is dict and any(name in document and name not in taken for name in _MEMBERS)


def _lines(body: Buffer) -> list[bytes]:
    return [line for line in bytes(body).split(b"\n") if line and not line.isspace()]


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
        # For each line the number of its requests, and the function that makes its answer from their responses.
        self._answers: list[tuple[int, Answer]] = []

    def run(self, lines: list[bytes]) -> tuple[bytes, str, dict[str, Parameter] | None, InferenceTimes | None]:
        """The body of the reply, its media type, the parameters of the first response, and the longest times of all."""
        responses = run_many(self._application, self._environ, self._requests(lines))
        content = bytearray()
        start = 0
        for count, answer in self._answers:
            text = answer(responses[start : start + count])
            content += text if text.endswith(_BREAK) else text + _BREAK
            start += count
        media_type = self._type(_is_v2(lines[0]))
        if media_type is None or media_type in JSON.media_types:
            media_type = JSONLINES.media_types[0]
        times = InferenceTimes.longest(response.times for response in responses)
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
        return self._v2(line, media_type) if is_v2 else self._instances(line, media_type or JSON.media_types[0])

    def _type(self, is_v2: bool) -> str | None:
        chosen = self._answer_type(is_v2)
        if chosen in _ARRAYS:
            raise NotAcceptable(f"answers in {chosen} cannot be joined line by line", hint="ask for JSON or CSV")
        return chosen

    def _v2(self, line: bytes, media_type: str | None) -> tuple[list[InferenceRequest], Answer]:
        spec = self._spec
        slicing = slicing_of(self._environ, len(line), spec)
        request, plan = decode_request(line, None, LATEST, spec, self._limit, slicing)
        if media_type is not None:
            check_convertible(request, spec, media_type)
        elif any(plan.form_of(name)[0] for name in request.outputs or spec.outputs):
            raise InvalidRequest("an answer of lines cannot have binary outputs")
        complete(self._application, self._environ, request)

        def answer(responses: list[InferenceResponse]) -> bytes:
            if media_type is None:
                return b"".join(encode_response(responses[0], plan, spec)[0])
            return b"".join(content_of(converted(request, responses[0], plan, spec).columns, media_type, None))

        return [request], answer

    def _instances(self, line: bytes, media_type: str) -> tuple[list[InferenceRequest], Answer]:
        slicing = slicing_of(self._environ, len(line), self._spec)
        payload = decode_json(line, self._spec, DecodeRules(max_input_size=self._limit, slicing=slicing))
        pattern = InferenceRequest(self._spec.name, [])
        if payload.parameters:
            read_parameters(payload.parameters, pattern)
        complete(self._application, self._environ, pattern)
        return list(requests_of(payload, self._spec, pattern)), lambda responses: b"".join(
            content_of(result_of(responses, payload).columns, media_type, payload.form)
        )


def _is_v2(line: bytes) -> bool:
    return starts_as_v2(line) or document_form(line) is DocumentForm.V2
