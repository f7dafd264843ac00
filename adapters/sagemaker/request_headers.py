"""The platform's headers: parameters of an infer request, and headers made from the parameters of its response.

A header becomes a string parameter under its own name, such as `X-Amzn-SageMaker-Session-Id`. The custom attributes
header is also split at commas, and each item `key=value` becomes a parameter. A parameter in the body takes precedence
over one from a header. A response parameter with a header's name becomes that header.
Source: docs/spec/sagemaker.md section A3 (names, limits), C.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import BackendFailed, InvalidRequest
from core.frontend.request_parameters import RESERVED_PARAMETERS, RESERVED_PREFIX
from core.http.reply import Environ, Headers
from core.inference.request import InferenceRequest, Parameter
from core.inference.times import InferenceTimes

_NAME = "X-Amzn-SageMaker-"
CUSTOM_ATTRIBUTES = f"{_NAME}Custom-Attributes"
TARGET_MODEL = f"{_NAME}Target-Model"
INFERENCE_ID = f"{_NAME}Inference-Id"
# The most characters of each header.
_LIMITS = {
    CUSTOM_ATTRIBUTES: 1024,
    f"{_NAME}Session-Id": 256,
    TARGET_MODEL: 1024,
    f"{_NAME}Target-Variant": 63,
    f"{_NAME}Target-Container-Hostname": 63,
    f"{_NAME}Inference-Component": 63,
    f"{_NAME}Enable-Explanations": 64,
}
_LONGEST_ID = 64
_ANSWERED = (CUSTOM_ATTRIBUTES, f"{_NAME}New-Session-Id", f"{_NAME}Closed-Session-Id")
_LONGEST_ANSWER = 1024


def environ_key(header: str) -> str:
    return f"HTTP_{header.upper().replace('-', '_')}"


_KEYS = tuple((environ_key(name), name, limit) for name, limit in _LIMITS.items())
_ID_KEY = environ_key(INFERENCE_ID)
_ALL_KEYS = (*(key for key, _, _ in _KEYS), _ID_KEY)


def adopt_headers(environ: Environ, request: InferenceRequest) -> None:
    """Add the headers to the request's parameters. The inference id becomes the request's id if it has none.

    Raises InvalidRequest for a value that the platform itself would refuse.
    """
    if environ.keys().isdisjoint(_ALL_KEYS):
        return
    found = {name: _checked(name, environ[key], limit) for key, name, limit in _KEYS if key in environ}
    if found:
        attributes = found.get(CUSTOM_ATTRIBUTES, "")
        request.parameters = {**_pairs(attributes), **found, **(request.parameters or {})}
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


def _pairs(attributes: str) -> dict[str, Parameter]:
    """The items `key=value`, except keys that have a meaning in the v2 protocol: the client did not mean that."""
    pairs: dict[str, Parameter] = {}
    for item in attributes.split(","):
        key, equals, value = item.partition("=")
        key = key.strip()
        if equals and key and key not in RESERVED_PARAMETERS and not key.startswith(RESERVED_PREFIX):
            pairs[key] = value.strip()
    return pairs


def _checked(name: str, value: str, limit: int) -> str:
    if len(value) > limit:
        raise InvalidRequest(f"the header {name} has {len(value)} characters, at most {limit} are allowed")
    if not _is_visible(value):
        raise InvalidRequest(f"the header {name} may hold visible ASCII characters only")
    return value


def _is_visible(text: str) -> bool:
    return text.isascii() and text.isprintable()
