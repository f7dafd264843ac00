"""The media type of a response, chosen by the request's Accept header.

Source: docs/spec/sagemaker.md sections B5 and C "Content types"; section A6 for batch transform.
"""

from __future__ import annotations

from functools import lru_cache

from adapters.sagemaker.settings import DEFAULT_ACCEPT, SageMakerSettings
from core.errors import ConfigInvalid, InvalidRequest
from core.http.payloads.body_kind import OCTETS, BodyKind
from core.http.payloads.formats import CSV, FORMATS, JSON, JSONLINES, format_for
from core.http.payloads.media_type import choose
from core.http.v2.binary_type import BinaryType

# The type of bodies with binary tensors, as in Triton's SageMaker adapter.
BINARY = BinaryType("application/vnd.sagemaker-triton.binary+json")
# The types of the v2 protocol's own answers, which its clients may name in Accept.
_V2_TYPES = (*JSON.media_types, BINARY.essence, OCTETS)
_OTHERS = tuple(essence for row in FORMATS if row is not JSON for essence in row.media_types)
_LINES = {BodyKind.CSV: CSV.media_types[0], BodyKind.JSONLINES: JSONLINES.media_types[0]}


class ResponseTypes:
    """Chooses by Accept and the settings. Raises ConfigInvalid for a default that is not a known media type."""

    def __init__(self, settings: SageMakerSettings) -> None:
        try:
            self._default = format_for(settings.default_accept)
        except InvalidRequest as error:
            raise ConfigInvalid(f"the variable {DEFAULT_ACCEPT}: {error.message}") from error
        # A batch job joins its answers line by line, so requests of lines get answers of lines.
        self._keeps_lines = settings.batch and "default_accept" not in settings.sources

    def of(self, accept: str | None, kind: BodyKind, outputs: int = 1) -> str:
        """The type for a request of `kind` to a model with `outputs` outputs. Raises NotAcceptable."""
        default = _LINES.get(kind, self._default) if self._keeps_lines else self._default
        return _chosen(accept, default, outputs)


@lru_cache(maxsize=256)
def other_than_v2(accept: str) -> str | None:
    """The type that a v2 request prefers to a v2 response; None if it accepts that, or accepts no type that we have.

    Triton ignores Accept, so a client that sends a useless one must get the same answer as from Triton.
    """
    try:
        chosen = choose(accept, (*_V2_TYPES, *_OTHERS))
    except InvalidRequest:
        return None
    return None if chosen in _V2_TYPES else chosen


_chosen = lru_cache(maxsize=256)(format_for)
