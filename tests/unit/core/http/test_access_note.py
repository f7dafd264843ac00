"""Notes for the access log."""

from __future__ import annotations

from trident.core.http.front_end import INFERENCE_KEY, InferenceNote, note_inference
from trident.core.http.reply import Environ
from trident.core.inference.request import InferenceTimes
from trident.core.inference.response import InferenceResponse


def test_the_model_and_the_longest_times_of_all_responses_are_noted() -> None:
    environ: Environ = {}
    responses = [InferenceResponse("m", 3, []) for _ in range(2)]
    assert note_inference(environ, responses) is None
    assert environ == {}
    responses[0].times = InferenceTimes(1, 2, 3, 4, 5)
    responses[1].times = InferenceTimes(9, 2, 3, 4, 1)
    assert note_inference(environ, responses) == InferenceTimes(9, 2, 3, 4, 5)
    assert environ == {INFERENCE_KEY: InferenceNote("m", 3, InferenceTimes(9, 2, 3, 4, 5))}
