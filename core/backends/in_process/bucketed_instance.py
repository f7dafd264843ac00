"""An instance of a model whose batches are padded to buckets.

Source: docs/ragged-batching.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from core.backends.base import BucketedExecution, Execution
from core.backends.in_process.instance import Failures, InProcessInstance, Run
from core.backends.tensors.padded_splitter import PaddedSplitter
from core.backends.tensors.padding_gatherer import PaddingGatherer
from core.config.model_spec import ModelSpec
from core.config.placement import Placement
from core.inference.request import InferenceRequest
from core.inference.response_sender import ResponseSender


class BucketedInstance(InProcessInstance):
    """An InProcessInstance that says of each execution to which bucket it was padded."""

    def __init__(
        self,
        placement: Placement,
        spec: ModelSpec,
        gatherer: PaddingGatherer,
        splitter: PaddedSplitter,
        run: Run,
        failures: Failures,
        *,
        run_options: Any = None,
        may_run_inline: bool = False,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            placement,
            spec,
            gatherer,
            splitter,
            run,
            failures,
            run_options=run_options,
            may_run_inline=may_run_inline,
            on_close=on_close,
        )
        self._padding = gatherer

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        """As that of InProcessInstance, with the bucket."""
        done = super().execute(requests, batch_sizes, senders)
        return BucketedExecution(done.outputs, done.input_end_ns, done.output_start_ns, bucket=self._padding.use)
