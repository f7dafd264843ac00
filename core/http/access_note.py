"""What the views note about a request for the access log, which the worker writes after the response.

The notes are entries of the request's environ. An inference that succeeds is noted only if the engine notes times,
which it does for an access log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from core.http.reply import Environ
from core.inference.response import InferenceResponse
from core.inference.times import InferenceTimes

INFERENCE_KEY: Final = "trident.inference"
PROBE_KEY: Final = "trident.probe"
"""Set for a health probe or a scrape of metrics: such requests are many and all alike."""


class InferenceNote(NamedTuple):
    """`version` is below 1 if no version has answered."""

    model: str
    version: int = 0
    times: InferenceTimes | None = None


def note_inference(environ: Environ, responses: Sequence[InferenceResponse]) -> InferenceTimes | None:
    """Note the model that answered one request with `responses`, and return their times; None without any."""
    times = InferenceTimes.longest([response.times for response in responses])
    if times is not None:
        environ[INFERENCE_KEY] = InferenceNote(responses[0].model_name, responses[0].model_version, times)
    return times
