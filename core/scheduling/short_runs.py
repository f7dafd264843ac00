"""Whether a model's executions are so short that a thread which has other things to do may run one."""

from __future__ import annotations

from core.config.model_spec import ModelSpec

# About what waking another thread and sharing the interpreter with it costs on a busy machine, a few times over.
_SHORT_NS = 1_000_000
_IN_A_ROW = 16


class ShortRuns:
    """Any thread; an execution that is noted while another one is may be lost."""

    __slots__ = ("_possible", "_short")

    def __init__(self, spec: ModelSpec) -> None:
        # Where a dimension is free, the size of the next request says more than the time of the last one. And a batch
        # that waits for company needs a thread that waits.
        waits = spec.batching is not None and spec.batching.max_queue_delay_ns > 0
        self._possible = not waits and all(dim >= 0 for tensor in spec.inputs.values() for dim in tensor.dims)
        self._short = 0

    @property
    def expected(self) -> bool:
        """Whether the next one will be short, as the last 16 were."""
        return self._short >= _IN_A_ROW

    def note(self, duration_ns: int) -> None:
        self._short = self._short + 1 if self._possible and duration_ns < _SHORT_NS else 0
