from __future__ import annotations

import numpy as np

from tests.unit.packed_tensors import packed_responses
from trident.core.inference.request import InferenceRequest, InferenceTimes
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.response_cache.response_cache import CachedResponse


def test_the_copy_does_not_follow_the_model_s_arrays() -> None:
    numbers, words = np.arange(3, dtype=np.int32), np.array([b"a", b"bcd"], object)
    outputs = [OutputTensor("N", "INT32", (3,), numbers), OutputTensor("W", "BYTES", (2,), words)]
    cached = CachedResponse.of(InferenceResponse("m", 1, outputs, id="first", parameters={"score": 2}))
    numbers[:] = 0
    answer = cached.answer(InferenceRequest("m", [], id="second"), "m", 1)
    assert [(out.name, out.datatype, out.shape, out.array.tolist()) for out in answer.outputs] == [
        ("N", "INT32", (3,), [0, 1, 2]),
        ("W", "BYTES", (2,), [b"a", b"bcd"]),
    ]
    assert (answer.id, answer.final, answer.parameters, answer.times) == ("second", True, {"score": 2}, None)


def test_packed_outputs_stay_packed() -> None:
    (response,) = packed_responses(1)
    answer = CachedResponse.of(response).answer(InferenceRequest("m", []), "m", 1)
    assert [out.array.tolist() for out in answer.outputs] == [out.array.tolist() for out in response.outputs]


def test_the_times_of_the_execution_are_not_kept() -> None:
    of_the_execution = InferenceTimes(1, 2, 3, 4, 5).parameters()
    cached = CachedResponse.of(InferenceResponse("m", 1, [], parameters={**of_the_execution, "score": 2}))
    assert cached.answer(InferenceRequest("m", []), "m", 1).parameters == {"score": 2}


def test_an_answer_s_parameters_are_its_own() -> None:
    cached = CachedResponse.of(InferenceResponse("m", 1, [], parameters={"score": 2}))
    first = cached.answer(InferenceRequest("m", []), "m", 1)
    assert first.parameters is not None
    first.parameters["score"] = 3
    assert cached.answer(InferenceRequest("m", []), "m", 1).parameters == {"score": 2}
