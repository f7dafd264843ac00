"""The steps of an inference that take long for large texts and many strings. They are taken off the hub, in slices.

Otherwise they would delay health and all other requests: 44 MB of JSON by 2 seconds.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from core.config.model_spec import ModelSpec
from core.errors import RequestCancelled
from core.frontend.bridge import ClientGone
from core.http.front_end import HttpFrontEnd
from core.http.reply import CLIENT_GONE_KEY, Environ
from core.http.slices.slicing import Slicing
from core.http.v2.json_document import NotStrict
from core.http.v2.request_codec import decode_request
from core.http.v2.response_codec import Encoded, ResponsePlan, encode_response
from core.inference.request import InferenceRequest
from core.inference.response import InferenceResponse, OutputTensor
from core.inference.tensors import BYTES, Buffer

# Text of these sizes is read in 10 to 30 milliseconds. Numbers are read as a whole up to there, because that takes half
# of the CPU time: another thread and the search for the ends of slices cost as much as the parser.
LONG_NUMBERS: Final = 4 << 20
LONG_STRINGS: Final = 1 << 20
# With an error or with NaN, a text of this size takes 5 to 10 milliseconds: it is read again in slices.
_LONG_BROKEN: Final = 1 << 19
# As that of requests.
_MANY_STRINGS: Final = 1 << 16
# Four megabytes of JSON.
_LONG_ANSWER: Final = 1 << 20


def is_long(size: int, spec: ModelSpec) -> bool:
    """Whether a text of `size` bytes for the model has to be read in slices."""
    return size >= LONG_STRINGS and (
        size >= LONG_NUMBERS or any(expected.datatype is BYTES for expected in spec.inputs.values())
    )


def slicing_of(environ: Environ) -> Slicing:
    """The slicing of a long text, whose reading ends with RequestCancelled when the client has gone. Any thread."""
    client_gone: ClientGone | None = environ.get(CLIENT_GONE_KEY)

    def pause() -> None:
        if client_gone is not None and client_gone():
            raise RequestCancelled("the client went away")

    return Slicing(pause)


def decode(
    front_end: HttpFrontEnd, environ: Environ, body: Buffer, header_length: int | None, version: int, spec: ModelSpec
) -> tuple[InferenceRequest, ResponsePlan]:
    """The v2 request in `body`. Raises ServerError."""
    limit = front_end.options.max_input_size
    size = len(body) if header_length is None else header_length
    if size < _LONG_BROKEN:
        return decode_request(body, header_length, version, spec, limit)
    if not is_long(size, spec):
        with suppress(NotStrict):
            return decode_request(body, header_length, version, spec, limit, is_strict=True)
    return front_end.bridge.run(decode_request, body, header_length, version, spec, limit, slicing_of(environ))


def encode(front_end: HttpFrontEnd, response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> Encoded:
    """The body of the v2 response."""
    size = response.nbytes
    if size >= _MANY_STRINGS and any(_is_long(output, size, plan) for output in response.outputs):
        return front_end.bridge.run(encode_response, response, plan, spec)
    return encode_response(response, plan, spec)


def _is_long(output: OutputTensor, size: int, plan: ResponsePlan) -> bool:
    """Whether an output of a response of `size` bytes takes long to become JSON."""
    return (size >= _LONG_ANSWER or output.datatype == "BYTES") and not plan.form_of(output.name)[0]
