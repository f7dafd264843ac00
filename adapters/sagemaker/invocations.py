"""Invocations: one request body and one response body, in the formats that Content-Type and Accept name.

A body of the v2 protocol, as JSON or with binary tensors, is answered as on plain HTTP. A body in any other format is
decoded into the model's inputs, and the outputs are encoded as Accept asks.
Source: docs/spec/sagemaker.md sections A2, A3, A6, A7, B5 and C.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from functools import lru_cache

from trident.adapters.sagemaker.platform import DEFAULT_ACCEPT, SESSIONS_EXPIRATION, SageMakerSettings
from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import BackendFailed, ConfigInvalid, InvalidRequest
from trident.core.frontend.dataplane import one_response
from trident.core.frontend.request import RESERVED_PARAMETERS, RESERVED_PREFIX, boolean
from trident.core.http.application import V2Application
from trident.core.http.body import choose
from trident.core.http.dataplane import infer_body, off_hub, read_body
from trident.core.http.payloads.inference import (
    CSV,
    FORMATS,
    JSON,
    JSONLINES,
    OCTETS,
    BinaryType,
    Format,
    body_format,
    decode_payload,
    format_for,
    infer_converted,
    infer_lines,
    infer_payload,
    is_plainly_v2,
    may_be_request_lines,
    payload_reply,
    request_lines,
)
from trident.core.http.payloads.tables import table_as_instances
from trident.core.http.reply import Environ, Headers, Reply
from trident.core.http.text_generation import text_answer
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import LATEST, InferenceRequest, InferenceTimes, Parameter
from trident.core.inference.tensors import BYTES

# The type of bodies with binary tensors, as in Triton's SageMaker adapter.
BINARY = BinaryType("application/vnd.sagemaker-triton.binary+json")
# The types of the v2 protocol's own answers, which its clients may name in Accept.
_V2_TYPES = (*JSON.media_types, BINARY.essence, OCTETS)
_TYPES = (*_V2_TYPES, *(essence for row in FORMATS if row is not JSON for essence in row.media_types))
_LINES = {CSV: CSV.media_types[0], JSONLINES: JSONLINES.media_types[0]}


class ResponseTypes:
    """Chooses by Accept and the settings. Raises ConfigInvalid for a default that is not a known media type."""

    def __init__(self, settings: SageMakerSettings) -> None:
        try:
            self._default = format_for(settings.default_accept)
        except InvalidRequest as error:
            raise ConfigInvalid(f"the variable {DEFAULT_ACCEPT}: {error.message}") from error
        # A batch job joins its answers line by line, so requests of lines get answers of lines.
        self._keeps_lines = settings.batch and "default_accept" not in settings.sources

    def of(self, accept: str | None, format: Format, outputs: int = 1) -> str:
        """The type for a request in `format` to a model with `outputs` outputs. Raises NotAcceptable."""
        default = _LINES.get(format, self._default) if self._keeps_lines else self._default
        return _chosen(accept, default, outputs)


def other_than_v2(accept: str) -> str | None:
    """The type that a v2 request prefers to a v2 response; None if it accepts that, or accepts no type that we have.

    Triton ignores Accept, so a client that sends a useless one must get the same answer as from Triton.
    """
    chosen = choose(accept, _TYPES)
    return None if chosen in _V2_TYPES else chosen


_chosen = lru_cache(maxsize=256)(format_for)

# A header becomes a string parameter under its own name, such as `X-Amzn-SageMaker-Session-Id`. The custom attributes
# header is also split at commas, and each item `key=value` becomes a parameter. A parameter in the body takes
# precedence over one from a header. A response parameter with a header's name becomes that header. Source:
# docs/spec/sagemaker.md section A3 (names, limits), C.

_NAME = "X-Amzn-SageMaker-"
SESSION_ID = "X-Amzn-SageMaker-Session-Id"
NEW_SESSION_ID = "X-Amzn-SageMaker-New-Session-Id"
CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"
CUSTOM_ATTRIBUTES = f"{_NAME}Custom-Attributes"
TARGET_MODEL = f"{_NAME}Target-Model"
INFERENCE_ID = f"{_NAME}Inference-Id"
# The most characters of each header.
_LIMITS = {
    CUSTOM_ATTRIBUTES: 1024,
    SESSION_ID: 256,
    TARGET_MODEL: 1024,
    f"{_NAME}Target-Variant": 63,
    f"{_NAME}Target-Container-Hostname": 63,
    f"{_NAME}Inference-Component": 63,
    f"{_NAME}Enable-Explanations": 64,
    f"{_NAME}Prefix-Aware-Id": 64,
}
_LONGEST_ID = 64
# The bodies that open and close a session of AWS's containers for language models.
_CONTROL = b'"requestType"'
_LONGEST_CONTROL = 64
_ANSWERED = (CUSTOM_ATTRIBUTES, NEW_SESSION_ID, CLOSED_SESSION_ID)
_LONGEST_ANSWER = 1024


def environ_key(header: str) -> str:
    return f"HTTP_{header.upper().replace('-', '_')}"


_KEYS = tuple((environ_key(name), name, limit) for name, limit in _LIMITS.items())
_ID_KEY = environ_key(INFERENCE_ID)
_ALL_KEYS = (*(key for key, _, _ in _KEYS), _ID_KEY)


def adopt_headers(environ: Environ, request: InferenceRequest) -> None:
    """Add the headers to the request's parameters. The inference id becomes the request's id if it has none.

    A request of a session joins its sequence, and ends it if the custom attributes say so.
    Raises InvalidRequest for a value that the platform itself would refuse.
    """
    if environ.keys().isdisjoint(_ALL_KEYS):
        return
    found = {name: _checked(name, environ[key], limit) for key, name, limit in _KEYS if key in environ}
    if found:
        attributes = found.get(CUSTOM_ATTRIBUTES, "")
        # The items `key=value`, except keys that have a meaning in the v2 protocol: the client did not mean that.
        pairs: dict[str, Parameter] = {}
        for item in attributes.split(","):
            key, equals, value = item.partition("=")
            key = key.strip()
            if equals and key and key not in RESERVED_PARAMETERS and not key.startswith(RESERVED_PREFIX):
                pairs[key] = value.strip()
        request.parameters = {**pairs, **found, **(request.parameters or {})}
        session: Session | None = environ.get(SESSION_KEY)
        if session is not None:
            session.join(request, ends=_says_end(attributes))
    if _ID_KEY in environ:
        inference_id = _checked(INFERENCE_ID, environ[_ID_KEY], _LONGEST_ID)
        request.id = request.id or inference_id


def parameter_headers(parameters: Mapping[str, Parameter]) -> Headers:
    """The headers that the model set. Raises BackendFailed for a value that no header can have."""
    headers: Headers = []
    for name in _ANSWERED:
        value = parameters.get(name)
        if value is None:
            continue
        text = str(value)
        if not _is_visible(text) or len(text) > _LONGEST_ANSWER:
            raise BackendFailed(
                f"the model set '{name}' to a value that is not visible ASCII of at most {_LONGEST_ANSWER} characters"
            )
        headers.append((name, text))
    return headers


def add_timing(times: InferenceTimes, headers: Headers) -> None:
    """Add the times to the custom attributes, the one response header of the platform that clients see, behind those
    that the model set; not if they do not fit. The names and microseconds are those of the response parameters."""
    text = ",".join(f"{name}={value}" for name, value in times.parameters().items())
    for index, (name, value) in enumerate(headers):
        if name == CUSTOM_ATTRIBUTES:
            if len(value) + len(text) < _LONGEST_ANSWER:
                headers[index] = (name, f"{value},{text}")
            return
    headers.append((CUSTOM_ATTRIBUTES, text))


def _says_end(attributes: str) -> bool:
    """True if an item is `sequence_end=true`. Raises InvalidRequest for a value that is not a boolean."""
    for item in attributes.split(","):
        key, equals, value = item.partition("=")
        if equals and key.strip() == SEQUENCE_END:
            return boolean(SEQUENCE_END, {"true": True, "false": False}.get(value.strip().lower(), value))
    return False


def _checked(name: str, value: str, limit: int) -> str:
    if len(value) > limit:
        raise InvalidRequest(f"the header {name} has {len(value)} characters, at most {limit} are allowed")
    if not _is_visible(value):
        raise InvalidRequest(f"the header {name} may hold visible ASCII characters only")
    return value


def _is_visible(text: str) -> bool:
    return text.isascii() and text.isprintable()


def invoke(application: V2Application, environ: Environ, model: ServedModel, response_types: ResponseTypes) -> Reply:
    body = read_body(application, environ)
    content_type: str = environ.get("CONTENT_TYPE") or ""
    size_text = BINARY.size_text(content_type)
    if size_text is None and (answer := text_answer(application, environ, model, body)) is not None:
        return answer
    spec = one_response(model).spec
    if not len(body):
        raise InvalidRequest("the body is empty", hint="send the model's inputs, in a format that Content-Type names")
    if SESSION_KEY in environ and len(body) <= _LONGEST_CONTROL and _CONTROL in bytes(body):
        raise InvalidRequest(
            "the body only opens or closes a session: send the first inputs with NEW_SESSION, and the custom attribute "
            "sequence_end=true with the last"
        )
    if size_text is None:
        body = table_as_instances(body, spec) or body
        if may_be_request_lines(content_type, body):
            lines = off_hub(application, len(body), request_lines, content_type, body, spec)
            if lines is not None:
                return _infer_lines(application, environ, spec, lines, response_types)
        plain = is_plainly_v2(content_type, body)
        found = None if plain else body_format(content_type, body, spec, f"{BINARY.prefix}N")
        accept = environ.get("HTTP_ACCEPT")
        if found is not None:
            media_type = response_types.of(accept, found, len(spec.outputs))
            payload = decode_payload(application, body, spec, found)
            result = infer_payload(application, environ, model, payload)
            return payload_reply(application, environ, result, media_type, payload.form)
        wanted = other_than_v2(accept) if accept is not None else None
        if wanted is not None:
            result = infer_converted(application, environ, model, body, LATEST, wanted)
            return payload_reply(application, environ, result, wanted)
    elif not size_text:
        raise BINARY.missing_size()
    return infer_body(application, environ, model, body, LATEST, size_text)


def _infer_lines(
    application: V2Application, environ: Environ, spec: ModelSpec, lines: list[bytes], response_types: ResponseTypes
) -> Reply:
    """Answer each line as if it were alone in a JSON body."""
    accept: str | None = environ.get("HTTP_ACCEPT")

    def answer_type(is_v2: bool) -> str | None:
        if is_v2:
            return None if accept is None else other_than_v2(accept)
        return response_types.of(accept, JSON, len(spec.outputs))

    return infer_lines(application, environ, spec, lines, answer_type)


# Sessions. The header `X-Amzn-SageMaker-Session-Id: NEW_SESSION` opens one: its request is the START of a sequence, and
# the answer names the session and when it expires. Requests with that id follow in the sequence, and the one that is
# its END closes the session. An id holds the sequence's number and the expiry, so that any front end knows a session.
SEQUENCE_END = "sequence_end"
SESSION_KEY = "trident.sagemaker.session"
_HEADER_KEY = "HTTP_X_AMZN_SAGEMAKER_SESSION_ID"
_NEW = "NEW_SESSION"
_ID = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,10})")
_NUMBER_BITS = 63


class Session:
    """One request of a session. Not thread-safe."""

    __slots__ = ("_expires_s", "_first", "_id", "_is_closed", "_is_new", "_is_text", "_number", "_starts")

    def __init__(self, number: int, expires_s: int, *, is_new: bool, is_text: bool) -> None:
        self._number = number
        self._expires_s = expires_s
        self._id = f"{number:x}-{expires_s:x}"
        self._is_new = self._starts = is_new
        self._is_text = is_text
        self._is_closed = False
        self._first: InferenceRequest | None = None

    def join(self, request: InferenceRequest, *, ends: bool) -> None:
        """Make `request` the next one of the sequence; a body of lines has several.

        Raises InvalidRequest if it names another sequence, or comes behind the END.
        """
        if request.correlation_id:
            raise InvalidRequest(
                f"the request has both the header {SESSION_ID} and the parameter sequence_id",
                hint="a session is a sequence and has its id: leave out sequence_id",
            )
        if self._is_closed:
            raise InvalidRequest(
                "the session is closed before the last line of the body",
                hint="close it with the parameter sequence_end of the last line",
            )
        request.correlation_id = self._id if self._is_text else self._number
        if self._starts:
            request.sequence_start = True
            self._first = request
        request.sequence_end = self._is_closed = ends or request.sequence_end
        self._starts = False

    def give_up(self, model: ServedModel) -> None:
        """The answer is an error. One that would have opened the session does not name it, so no client can close it:
        without this it would have a slot of the model until it was idle for long enough.

        A sequence ends with a request that is cancelled before it runs, and with its END.
        """
        if self._first is None:
            return
        end = self._first.with_inputs(self._first.inputs, model_version=self._first.model_version, id="")
        end.sequence_start, end.sequence_end = False, True
        pending = PendingRequest(end, lambda response: None)
        pending.submit_to(model)
        pending.cancel()

    def headers(self) -> Headers:
        found: Headers = []
        if self._is_new:
            expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._expires_s))
            found.append((NEW_SESSION_ID, f"{self._id}; Expires={expiry}"))
        if self._is_closed:
            found.append((CLOSED_SESSION_ID, self._id))
        return found


def session_of(environ: Environ, spec: ModelSpec, settings: SageMakerSettings) -> Session | None:
    """The session of a request, which `environ` keeps for its inference requests; None if it names none, or if the
    model sees to its sessions itself.

    Raises InvalidRequest for a session that was not opened here or has expired.
    """
    text = environ.get(_HEADER_KEY)
    if text is None:
        return None
    applies = spec.sequence is not None if settings.sessions is None else settings.sessions
    if not applies:
        return None
    environ[SESSION_KEY] = session = _session(text, spec, settings)
    return session


def _session(text: str, spec: ModelSpec, settings: SageMakerSettings) -> Session:
    control = None if spec.sequence is None else spec.sequence.correlation_id
    is_text = control is not None and control.datatype is BYTES
    now_s = int(time.time())
    if text == _NEW:
        number = secrets.randbits(_NUMBER_BITS) or 1
        return Session(number, now_s + settings.session_expiration_s, is_new=True, is_text=is_text)
    found = _ID.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"there is no session '{text[:80]}'", hint=f"open one with {SESSION_ID}: {_NEW}")
    number, expires_s = (int(part, 16) for part in found.groups())
    if expires_s < now_s:
        raise InvalidRequest(
            f"the session '{text}' has expired",
            hint=f"open another one; {SESSIONS_EXPIRATION} is the life of a session in seconds",
        )
    return Session(number, expires_s, is_new=False, is_text=is_text)
