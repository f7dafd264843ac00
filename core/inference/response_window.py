"""The responses of one request that were sent and not taken.

Source: docs/spec/schedulers.md section 3.8.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from core.inference.response import InferenceResponse, OutputTensor, PackedOutputs
from core.inference.window_limits import WindowLimits


class ResponseWindow:
    """Not thread-safe. Responses are taken in the order in which they were sent."""

    __slots__ = ("_limits", "_nbytes", "_sizes")

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._sizes: deque[int] = deque()
        self._nbytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._sizes) >= self._limits.responses or self._nbytes >= self._limits.nbytes

    def put(self, response: InferenceResponse) -> None:
        """Note that `response` was sent."""
        size = _size(response)
        self._sizes.append(size)
        self._nbytes += size

    def take(self, count: int) -> None:
        """Note that the oldest `count` responses were taken; more than there are is the same as all."""
        sizes = self._sizes
        for _ in range(min(count, len(sizes))):
            self._nbytes -= sizes.popleft()


def _size(response: InferenceResponse) -> int:
    """The bytes of the outputs, those of strings included."""
    outputs = response.outputs
    if type(outputs) is PackedOutputs:
        return outputs.layout.size
    size = 0
    for output in outputs:
        # The array of an output that is bytes already is made on each use.
        if type(output) is OutputTensor and output.array.dtype == np.object_:
            size += sum(map(len, output.array.reshape(-1).tolist()))
        else:
            size += output.nbytes
    return size
