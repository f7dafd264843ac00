"""Whether a model's executions are so short that a thread which has other things to do may run one."""

from __future__ import annotations

from collections.abc import Sequence

from core.config.model_spec import ModelSpec
from core.inference import InferenceRequest

# About what waking another thread and sharing the interpreter with it costs on a busy machine, a few times over.
_SHORT_NS = 1_000_000
_IN_A_ROW = 16


class ShortRuns:
    """Any thread; an execution that is noted while another one is may be lost.

    No client may hold up that thread: what it decides itself, the size of a free dimension, of a string or of a batch,
    must not make the next execution long after short ones.
    """

    __slots__ = ("_largest", "_possible", "_short")

    def __init__(self, spec: ModelSpec) -> None:
        # A batch that waits for company needs a thread that waits.
        waits = spec.batching is not None and spec.batching.max_queue_delay_ns > 0
        fixed = all(
            tensor.datatype.name != "BYTES" and all(dim >= 0 for dim in tensor.dims) for tensor in spec.inputs.values()
        )
        self._possible = fixed and not waits
        self._short = 0
        self._largest = 0

    def expected(self, items: int) -> bool:
        """Whether an execution of `items` will be short: the last 16 were, and one of them was half as large."""
        return self._short >= _IN_A_ROW and items <= 2 * self._largest

    def note(self, batch: Sequence[InferenceRequest], duration_ns: int) -> None:
        """`batch` was executed in `duration_ns` nanoseconds."""
        if not self._possible:
            return
        if duration_ns >= _SHORT_NS:
            self._short = self._largest = 0
            return
        self._short += 1
        self._largest = max(self._largest, sum(request.batch_size or 1 for request in batch))
