"""Bodies in formats other than the v2 protocol's, for the platforms' adapters and KServe's v1 protocol: the table of
the formats with their media types, decoders and encoders, and inference on what they hold.

A body is decoded to a payload by the model's inputs, the payload is split into requests, and their outputs are encoded
as the client asks. Source: docs/spec/sagemaker.md section C "Content types".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import InvalidRequest
from trident.core.frontend.classification import classified
from trident.core.frontend.dataplane import ResponsePlan, one_response
from trident.core.http.body import body_too_large, choose, parse_json
from trident.core.http.dataplane import (
    complete,
    decode_v2,
    encode_response,
    finish,
    off_hub,
    read_body,
    run,
    run_many,
)
from trident.core.http.front_end import HttpFrontEnd
from trident.core.http.payloads.arrays import decode_npy, decode_npz, decode_octets, decode_raw, encode_npy, encode_npz
from trident.core.http.payloads.csv import decode_csv, encode_csv
from trident.core.http.payloads.json import decode_json, decode_jsonlines, encode_json, encode_jsonlines
from trident.core.http.payloads.payload import (
    V2_INPUTS,
    DecodedPayload,
    DecodeRules,
    DocumentForm,
    OutputColumn,
    document_form,
    line_name,
    most_rows,
    output_columns,
    split_instances,
)
from trident.core.http.reply import Environ, Reply
from trident.core.http.v2_request import decode_request, read_json_parameters
from trident.core.inference.request import LATEST, InferenceRequest, InferenceTimes, Parameter
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Buffer

_OBJECT = re.compile(rb"\s*\{")

# --- media types and formats

# A name and a value, which may be quoted, of a parameter.
_PARAMETER = re.compile(r';\s*([^\s;=]+)\s*=\s*(?:"([^"]*)"|([^\s;"]+))\s*|;\s*')
_TYPE = re.compile(r"\s*([\w!#$&^.+-]+/[\w!#$&^.+-]+)\s*", re.ASCII)


@lru_cache(maxsize=256)
def parse_media_type(text: str) -> tuple[str, dict[str, str]]:
    """The `type/subtype` of a Content-Type header in lower case, and its parameters.

    Raises InvalidRequest for a malformed value or a range.
    """
    found = _TYPE.match(text)
    parameters: dict[str, str] = {}
    at = found.end() if found else 0
    while item := _PARAMETER.match(text, at):
        at = item.end()
        if item[1]:
            parameters[item[1].lower()] = item[2] or item[3] or ""
    if not found or at < len(text):
        raise InvalidRequest(
            f"the Content-Type header is not understood: {text[:100]!r}", hint="a form such as text/csv"
        )
    return found[1].lower(), parameters


SIZE = "json-header-size"


class BinaryType:
    """A platform's type of v2 bodies with binary tensors, whose parameter is the length of the JSON before them.

    `essence` is the media type without its parameter, `prefix` the text before the number."""

    def __init__(self, essence: str) -> None:
        self.essence = essence
        self.prefix = f"{essence};{SIZE}="

    def size_text(self, content_type: str) -> str | None:
        """The text of the length, valid or not; None for another type. Never raises.

        "" if the header contains the type but is malformed: the request is then refused for a missing length.
        """
        if content_type.startswith(self.prefix):
            return content_type[len(self.prefix) :]
        if self.essence not in content_type.lower():
            return None
        try:
            essence, parameters = parse_media_type(content_type)
        except InvalidRequest:
            return ""
        return parameters.get(SIZE, "") if essence == self.essence else ""

    def missing_size(self) -> InvalidRequest:
        return InvalidRequest(f"Content-Type must be '{self.prefix}N', N being the length of the JSON in bytes")

    def of(self, json_size: int) -> str:
        return f"{self.prefix}{json_size}"


Decode = Callable[[Buffer, ModelSpec, DecodeRules], DecodedPayload]
Encode = Callable[[list[OutputColumn]], bytes]

_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})


class UnsupportedMediaType(InvalidRequest):
    """No decoder exists for the body's Content-Type."""


class NotAcceptable(InvalidRequest):
    """No encoder exists for any type that Accept names."""


@dataclass(frozen=True, slots=True)
class Format:
    """Responses have the first of `media_types`. `text`: the format is text, which must be UTF-8."""

    media_types: tuple[str, ...]
    decode: Decode
    encode: Encode
    text: bool = True


JSON = Format(("application/json",), decode_json, encode_json)
CSV = Format(("text/csv",), decode_csv, encode_csv)
JSONLINES = Format(
    (
        "application/jsonlines",
        "application/jsonl",
        "application/x-jsonlines",
        "application/x-ndjson",
        "application/x-jsonl",
    ),
    decode_jsonlines,
    encode_jsonlines,
)
NPY = Format(("application/x-npy",), decode_npy, encode_npy, text=False)
NPZ = Format(("application/x-npz",), decode_npz, encode_npz, text=False)
# Two of bodies whose type does not describe their content; the answers are JSON.
OCTETS = "application/octet-stream"
TENSOR = Format((OCTETS,), decode_raw, encode_json, text=False)
JSON_OR_TENSOR = Format((OCTETS,), decode_octets, encode_json, text=False)

# In the order of preference for `*/*`.
FORMATS = (JSON, CSV, JSONLINES, NPY, NPZ)
_BY_MEDIA_TYPE = {media_type: row for row in FORMATS for media_type in row.media_types}


def format_of(content_type: str) -> Format:
    """The format of a body. Raises UnsupportedMediaType that lists the known types, InvalidRequest if malformed."""
    essence, parameters = parse_media_type(content_type)
    found = _BY_MEDIA_TYPE.get(essence)
    if found is None:
        raise UnsupportedMediaType(f"Content-Type '{essence}' is not supported, supported are: {supported_types()}")
    charset = parameters.get("charset", "utf-8")
    if found.text and charset.lower() not in _CHARSETS:
        raise UnsupportedMediaType(
            f"charset '{charset[:60]}' of Content-Type '{essence}' is not supported, supported is: utf-8"
        )
    return found


def is_json(content_type: str) -> bool:
    """True if a body of this type is JSON, or the type is missing."""
    return not content_type or known_format(content_type) is JSON


def format_for(accept: str | None, default: str = JSON.media_types[0], outputs: int = 1) -> str:
    """The media type for a response with `outputs` outputs; `default` if the header accepts anything.

    Raises NotAcceptable that lists the types that can hold the outputs.
    """
    known = [essence for essence, row in _BY_MEDIA_TYPE.items() if outputs == 1 or row is not NPY]
    chosen = choose(accept, (default, *known) if default in known else tuple(known))
    if chosen is None:
        raise NotAcceptable(f"none of '{(accept or '')[:100]}' can be sent, available are: {', '.join(known)}")
    return chosen


def supported_types(also: Sequence[str] = ()) -> str:
    return ", ".join([*also, *_BY_MEDIA_TYPE])


# JSON of the v2 protocol is accepted under `application/json` and under every unknown type, as in Triton; AWS's
# examples rely on that. The same is true for objects with instances or with inputs by column. A bare array is accepted
# under an unknown type only if that is `application/octet-stream` or missing. Source: docs/spec/sagemaker.md sections
# B5 and C.


# Nearly all bodies of the v2 protocol begin so; this check is 2 µs faster than the pattern.
_V2_STARTS = (b'{"inputs":[{', b'{"inputs": [{')
_LONGEST_START = max(map(len, _V2_STARTS))
_V2_START = re.compile(rb'\s*\{\s*(?:"id"\s*:\s*"[^"\\]*"\s*,\s*)?' + V2_INPUTS.pattern)
_OBJECTS = (DocumentForm.INSTANCES, DocumentForm.COLUMNS)


def body_format(content_type: str, body: Buffer, spec: ModelSpec, also: str) -> Format | None:
    """The format of a body for the model of `spec`; None for JSON of the v2 protocol, whose codec also reports errors.

    Raises UnsupportedMediaType that lists the supported types; `also` is the platform's own type for that list.
    """
    is_v2 = starts_as_v2(body)
    known = known_format(content_type)
    if known is JSON:
        return None if is_v2 or document_form(body) is DocumentForm.V2 else JSON
    if known is not None:
        # Batch transform sends each line of a file under the type of the file.
        if is_v2 and known.text and "inputs" not in spec.inputs and b"\n" not in bytes(body).strip():
            return None
        return known
    if _OBJECT.match(body) and V2_INPUTS.search(body):
        return None
    # A missing type means octets (RFC 9110 section 8.3).
    essence = parse_media_type(content_type)[0] if content_type else OCTETS
    if known_format(essence) is not None:
        format_of(content_type)  # raises, because the charset is wrong
    form = document_form(body)
    if essence == OCTETS and len(spec.inputs) == 1:
        return TENSOR if form is DocumentForm.V2 else JSON_OR_TENSOR
    if form in _OBJECTS or (form is DocumentForm.BARE and essence == OCTETS):
        return JSON
    supported = f"{supported_types((also,) if also else ())}, and {OCTETS} for a model with one input"
    raise UnsupportedMediaType(f"Content-Type '{essence}' is not supported here, supported are: {supported}")


def is_plainly_v2(content_type: str, body: Buffer) -> bool:
    """True if a quick check finds v2 JSON. It does for nearly all such bodies; `body_format` finds the others."""
    return content_type == JSON.media_types[0] and starts_as_v2(body)


def starts_as_v2(body: Buffer) -> bool:
    """True if a JSON document begins with members of the v2 protocol. Otherwise later members may still be of it."""
    return bytes(body[:_LONGEST_START]).startswith(_V2_STARTS) or _V2_START.match(body) is not None


@lru_cache(maxsize=256)
def known_format(content_type: str) -> Format | None:
    """The format of a body of this type; None for an unknown, malformed or missing type. Never raises."""
    try:
        return format_of(content_type)
    except InvalidRequest:
        return None


# --- inference

# How much larger the content of a small npz may be.
_INFLATES_BY = 32
# Decoding numbers is four times as fast as inflating bytes: 240 KB of JSON in a millisecond.
_READS_BY = 4


@dataclass(frozen=True, slots=True, eq=False)
class PayloadResult:
    """`columns` are the outputs, with a row for each instance; `parameters` are the first response's. `times` are the
    longest of all responses."""

    columns: list[OutputColumn]
    parameters: dict[str, Parameter] | None
    times: InferenceTimes | None = None


def decode_payload(
    front_end: HttpFrontEnd,
    body: Buffer,
    spec: ModelSpec,
    format: Format,
    ignored_fields: frozenset[str] = frozenset(),
) -> DecodedPayload:
    """Decode `body`, off the hub if that takes long. Raises InvalidRequest.

    `ignored_fields` are members of instances that are not inputs.
    """
    check_size(front_end, len(body))
    size = len(body) * _INFLATES_BY if format is NPZ else len(body) // _READS_BY
    rules = DecodeRules(max_input_size=front_end.options.max_input_size, ignored_fields=ignored_fields)
    return off_hub(front_end, size, format.decode, body, spec, rules)


def check_size(front_end: HttpFrontEnd, size: int) -> None:
    """Raises BodyTooLarge for a body over the limit on input size."""
    limit = front_end.options.max_input_size
    if size > limit:
        raise body_too_large(str(size), limit)


def infer_payload(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    payload: DecodedPayload,
    pattern: InferenceRequest | None = None,
) -> PayloadResult:
    """Run `payload` on `model`. Raises ServerError.

    A payload that fits into one batch is one request. Otherwise it is several, a native thread waits for them, and the
    version that then serves is held for all of them.
    Every request is a copy of `pattern`, which has no inputs.
    """
    pattern = pattern or InferenceRequest(model.spec.name, [])
    if payload_request(front_end, environ, model.spec, payload, pattern):
        response = run(front_end, environ, model, pattern)
        return off_hub(front_end, _unpacked_size(response), result_of, [response], payload)
    requests = requests_of(payload, model.spec, pattern)
    return front_end.bridge.run_long(lambda: result_of(run_many(front_end, environ, requests), payload))


def payload_request(
    front_end: HttpFrontEnd, environ: Environ, spec: ModelSpec, payload: DecodedPayload, pattern: InferenceRequest
) -> bool:
    """Complete `pattern` with the parameters and headers, and with the inputs of `payload` if they fit into one batch.

    Returns whether they do. Raises InvalidRequest.
    """
    if payload.parameters:
        read_json_parameters(payload.parameters, pattern)
    complete(front_end, environ, pattern)
    count, has_limit = payload.count, spec.max_batch_size > 0
    if count not in (None, 1) and not (payload.stacked and (not has_limit or count <= most_rows(spec))):
        return False
    (pattern.inputs,) = split_instances(payload, spec)
    return True


def infer_converted(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer, version: int, media_type: str
) -> PayloadResult:
    """Run a v2 JSON request whose response is to be in another `media_type`. Raises ServerError."""
    spec = model.spec
    request, plan = decode_v2(front_end, environ, body, None, version, spec)
    check_convertible(request, spec, media_type)
    complete(front_end, environ, request)
    response = run(front_end, environ, model, request)
    return off_hub(front_end, _unpacked_size(response), converted, request, response, plan, spec)


def _unpacked_size(response: InferenceResponse) -> int:
    """The size of the outputs, if there are strings among them that have to be unpacked one by one."""
    return response.nbytes if any(output.datatype == "BYTES" for output in response.outputs) else 0


def check_convertible(request: InferenceRequest, spec: ModelSpec, media_type: str) -> None:
    """Raises NotAcceptable for a type that cannot hold the outputs of a v2 request."""
    format_for(media_type, outputs=len(request.outputs or spec.outputs))


def converted(
    request: InferenceRequest, response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec
) -> PayloadResult:
    """The response to a v2 request, for another format. The first input gives the number of rows.

    The request's settings of binary tensors are ignored. Classifications are strings in every format.
    """
    rows = request.inputs[0].shape[0] if spec.max_batch_size > 0 and request.inputs else None
    outputs = [classified(output, plan.form_of(output.name)[1], spec) for output in response.outputs]
    payload = DecodedPayload(arrays={}, count=rows, stacked=True)
    return PayloadResult(output_columns([outputs], payload), response.parameters, response.times)


def payload_reply(
    front_end: HttpFrontEnd,
    environ: Environ,
    result: PayloadResult,
    media_type: str,
    form: DocumentForm | None = None,
) -> Reply:
    """The reply with the outputs as `media_type`; `form` is the form of the request if that was JSON."""
    size = sum(part.nbytes for column in result.columns for part in column.parts)
    content = off_hub(front_end, size, content_of, result.columns, media_type, form)
    headers = [("Content-Type", media_type)]
    return finish(front_end, environ, [content], headers, result.parameters, result.times)


def content_of(columns: list[OutputColumn], media_type: str, form: DocumentForm | None) -> bytes:
    if media_type in JSON.media_types:
        return encode_json(columns, form)
    return _BY_MEDIA_TYPE[media_type].encode(columns)


def requests_of(payload: DecodedPayload, spec: ModelSpec, pattern: InferenceRequest) -> Iterator[InferenceRequest]:
    """The requests of the payload, each a copy of `pattern` with inputs: the first has its START, the last its END.

    `pattern` gets the inputs of the first: who ends its sequence for it needs valid ones.
    """
    parts = split_instances(payload, spec)
    if parts:
        pattern.inputs = parts[0]
    for index, inputs in enumerate(parts, 1):
        request = pattern.with_inputs(inputs, model_version=pattern.model_version, id=pattern.id)
        request.sequence_start = pattern.sequence_start and index == 1
        request.sequence_end = pattern.sequence_end and index == len(parts)
        yield request


def result_of(responses: list[InferenceResponse], payload: DecodedPayload) -> PayloadResult:
    """Join the responses to the requests of `requests_of`. Raises ServerError."""
    columns = output_columns([response.outputs for response in responses], payload)
    times = InferenceTimes.longest(response.times for response in responses)
    return PayloadResult(columns, responses[0].parameters, times)


# --- request lines: JSON documents, one on each line, each answered in order as if it were alone
#
# All lines are submitted to the engine together, so that they form batches.


_LAST = b"}]"
_MEMBERS = ("instances", "inputs")
_BLANKS = re.compile(rb"\s*")
_NEXT = re.compile(rb"\s*[{\[]")
# Blanks behind a document that are looked through.
_LONGEST_BLANK = 64
_LINE_BREAK = re.compile(rb"\n")


def may_be_request_lines(content_type: str, body: Buffer) -> bool:
    """A quick check for request lines: False is certain, and `request_lines` decides the rest."""
    known = known_format(content_type)
    if known is JSONLINES:
        return _OBJECT.match(body) is not None
    if known not in (None, JSON):
        return False
    end = _first_line(body)[1]
    if end < 0:
        return False
    # Within one document no line that ends with a closing bracket precedes one that begins with an opening bracket.
    before = bytes(body[max(0, end - _LONGEST_BLANK) : end]).rstrip()
    return before[-1:] in _LAST and len(before) > 0 and _NEXT.match(body, end) is not None


def request_lines(content_type: str, body: Buffer, spec: ModelSpec) -> list[bytes] | None:
    """The documents of the body, each a request of the v2 protocol or with instances; None if the body has none.

    In JSON Lines the members `instances` and `inputs` tell a request from an instance, unless an input has that name. A
    single v2 request gives None, because it is read as one under all types. Raises InvalidRequest.
    """
    known = known_format(content_type)
    start, end = _first_line(body)
    first = bytes(body[start:end]) if end >= 0 else bytes(body[start:])
    if not _is_document(first, spec.inputs if known is JSONLINES else (), bare=known is JSON):
        return None
    lines = [line for line in bytes(body).split(b"\n") if line and not line.isspace()]
    return None if len(lines) == 1 and starts_as_v2(first) else lines


def _first_line(body: Buffer) -> tuple[int, int]:
    """Where the first line that is not blank begins, and its line break is, -1 if it has none."""
    blanks = _BLANKS.match(body)
    begin = blanks.end() if blanks else 0
    found = _LINE_BREAK.search(body, begin)
    return begin, found.start() if found else -1


def _is_document(line: bytes, taken: Container[str], *, bare: bool) -> bool:
    """True if the line is a request. Members in `taken` are inputs; `bare`: an array is a request, too."""
    if not bare and not any(f'"{name}"'.encode() in line for name in _MEMBERS):
        return False
    try:
        document = parse_json(line)
    except InvalidRequest:
        return False
    if type(document) is list:
        return bare
    return type(document) is dict and any(name in document and name not in taken for name in _MEMBERS)


# An encoded document does not end with a line break; encoded rows do.
_BREAK = b"\n"
_ARRAYS = (*NPY.media_types, *NPZ.media_types)

Answer = Callable[[list[InferenceResponse]], bytes]
# The media type of the answer to a line, given whether it is of the v2 protocol; None for a v2 response.
AnswerType = Callable[[bool], str | None]


def infer_lines(
    front_end: HttpFrontEnd, environ: Environ, spec: ModelSpec, lines: list[bytes], answer_type: AnswerType
) -> Reply:
    """Run the documents on the latest version. Raises ServerError if any of them fails.

    `answer_type` is called on a native thread.
    """
    check_size(front_end, sum(map(len, lines)))
    answered = front_end.bridge.run_long(_answer_lines, front_end, environ, spec, lines, answer_type)
    content, media_type, parameters, times = answered
    return finish(front_end, environ, [content], [("Content-Type", media_type)], parameters, times)


def _answer_lines(
    front_end: HttpFrontEnd, environ: Environ, spec: ModelSpec, lines: list[bytes], answer_type: AnswerType
) -> tuple[bytes, str, dict[str, Parameter] | None, InferenceTimes | None]:
    """The body of the reply, its media type, the parameters of the first response, and the longest times of all. On a
    native thread."""
    # For each line the number of its requests, and the function that makes its answer from their responses.
    answers: list[tuple[int, Answer]] = []

    def chosen_type(is_v2: bool) -> str | None:
        chosen = answer_type(is_v2)
        if chosen in _ARRAYS:
            raise NotAcceptable(f"answers in {chosen} cannot be joined line by line", hint="ask for JSON or CSV")
        return chosen

    def requests() -> Iterator[InferenceRequest]:
        for index, line in enumerate(lines):
            try:
                is_v2 = _is_v2(line)
                media_type = chosen_type(is_v2)
                read = _read_v2 if is_v2 else _read_instances
                made, answer = read(front_end, environ, spec, line, media_type)
            except InvalidRequest as error:
                raise type(error)(f"{line_name(index)}: {error.message}", hint=error.hint) from error
            answers.append((len(made), answer))
            yield from made

    responses = run_many(front_end, environ, requests())
    content = bytearray()
    start = 0
    for count, answer in answers:
        text = answer(responses[start : start + count])
        content += text if text.endswith(_BREAK) else text + _BREAK
        start += count
    media_type = chosen_type(_is_v2(lines[0]))
    if media_type is None or media_type in JSON.media_types:
        media_type = JSONLINES.media_types[0]
    times = InferenceTimes.longest(response.times for response in responses)
    return bytes(content), media_type, responses[0].parameters, times


def _read_v2(
    front_end: HttpFrontEnd, environ: Environ, spec: ModelSpec, line: bytes, media_type: str | None
) -> tuple[list[InferenceRequest], Answer]:
    request, plan = decode_request(line, None, LATEST, spec, front_end.options.max_input_size)
    if media_type is not None:
        check_convertible(request, spec, media_type)
    elif any(plan.form_of(name)[0] for name in request.outputs or spec.outputs):
        raise InvalidRequest("an answer of lines cannot have binary outputs")
    complete(front_end, environ, request)

    def answer(responses: list[InferenceResponse]) -> bytes:
        if media_type is None:
            return b"".join(encode_response(responses[0], plan, spec)[0])
        return content_of(converted(request, responses[0], plan, spec).columns, media_type, None)

    return [request], answer


def _read_instances(
    front_end: HttpFrontEnd, environ: Environ, spec: ModelSpec, line: bytes, media_type: str | None
) -> tuple[list[InferenceRequest], Answer]:
    payload = decode_json(line, spec, DecodeRules(max_input_size=front_end.options.max_input_size))
    pattern = InferenceRequest(spec.name, [])
    if payload.parameters:
        read_json_parameters(payload.parameters, pattern)
    complete(front_end, environ, pattern)
    return list(requests_of(payload, spec, pattern)), lambda responses: content_of(
        result_of(responses, payload).columns, media_type or JSON.media_types[0], payload.form
    )


def _is_v2(line: bytes) -> bool:
    return starts_as_v2(line) or document_form(line) is DocumentForm.V2


# --- KServe's v1 protocol, which is TensorFlow Serving's, for its clients
#
#     POST /v1/models/NAME:predict    {"instances": [...]} is answered with {"predictions": [...]}
#
# An object with `inputs`, a tensor by name, is answered with `outputs`. `GET /v1/models/NAME` is OpenAI's route, whose
# answer has the members of both (core/http/text_routes.py).


def predict(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """`POST /v1/models/NAME[/versions/N]:predict`. Raises ServerError."""
    number = int(version) if version else LATEST
    served = one_response(front_end.engine.model(model, number))
    body = read_body(front_end, environ)
    if not len(body):
        raise InvalidRequest("the body is empty", hint="send {'instances': [...]}")
    payload = decode_payload(front_end, body, served.spec, JSON)
    pattern = InferenceRequest(served.spec.name, [], model_version=number)
    result = infer_payload(front_end, environ, served, payload, pattern)
    return payload_reply(front_end, environ, result, JSON.media_types[0], payload.form)
