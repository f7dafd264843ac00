from __future__ import annotations

import numpy as np
import pytest

from trident.core.inference.response import InferenceResponse, Outputs, OutputTensor, PackedOutputs, ReceivedOutput
from trident.core.inference.streaming import ResponseWindow
from trident.core.inference.tensors import TensorLayout
from trident.core.inference.window_limits import WindowLimits

STRINGS = np.array([b"abc", b"", b"defgh"], dtype=object)


@pytest.mark.parametrize(
    ("outputs", "size"),
    [
        ([OutputTensor("A", "FP32", (2,), np.zeros(2, np.float32))], 8),
        ([OutputTensor("A", "BYTES", (3,), STRINGS)], 8),
        ([ReceivedOutput("A", "BYTES", (1,), memoryview(b"\1\0\0\0a"))], 5),
        (PackedOutputs(TensorLayout((("A", "UINT8", (2,), 0, 2), ("B", "UINT8", (1,), 2, 3))), memoryview(b"abc")), 3),
    ],
)
def test_a_response_counts_with_its_bytes(outputs: Outputs, size: int) -> None:
    window = ResponseWindow(WindowLimits(responses=100, nbytes=size + 1))
    window.put(InferenceResponse("m", 1, outputs))
    assert not window.is_full
    window.put(InferenceResponse("m", 1, [OutputTensor("A", "UINT8", (1,), np.zeros(1, np.uint8))]))
    assert window.is_full
    window.take(1)
    assert not window.is_full
