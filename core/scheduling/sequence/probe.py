"""Requests that no client sent, for models with sequences: those of warmup and golden requests."""

from __future__ import annotations

from collections.abc import Sequence

from core.backends.base import BackendInstance, Execution
from core.config.model_spec import ModelSpec
from core.inference.request import InferenceRequest
from core.inference.response_sender import Later, ResponseSender
from core.inference.tensors import BYTES
from core.scheduling.sequence.controls import Controls
from core.scheduling.sequence.placing import Placing
from core.scheduling.sequence.states import InitialStates, States


class SequenceProbe:
    """Implements BackendInstance around an instance: each request is a whole sequence, its START and its END."""

    poisoned = False
    may_run_inline = False

    def __init__(self, instance: BackendInstance, spec: ModelSpec, initial: InitialStates) -> None:
        sequence = spec.sequence
        assert sequence is not None
        self._instance = instance
        self._states = States(spec, initial) if sequence.states else None
        self._placing = Placing(spec, Controls(sequence, batching=spec.max_batch_size > 0), self._states)
        self._id: int | str = 1
        if sequence.correlation_id is not None and sequence.correlation_id.datatype is BYTES:
            self._id = "1"
        self.placement = instance.placement
        self.answers_later = instance.answers_later

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        """See BackendInstance."""
        states = self._states
        for request in requests:
            request.correlation_id, request.sequence_start, request.sequence_end = self._id, True, True
        first = states.first if states is not None else []
        placed = [self._placing.placed(request, first) for request in requests]
        execution = self._instance.execute(placed, batch_sizes, senders)
        if states is not None:
            pairs = zip(requests, execution.outputs, strict=True)
            execution.outputs = [
                outcome if isinstance(outcome, Later | Exception) else states.for_client(outcome, request.outputs)
                for request, outcome in pairs
            ]
        return execution

    def close(self) -> None:
        """The instance is closed by those who made it."""
