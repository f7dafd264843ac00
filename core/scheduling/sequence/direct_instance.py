"""Batches in which each sequence has its own place: the slot that it got when it began.

Source: docs/spec/schedulers.md section 3.4, "Direct".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from core.backends.base import BackendInstance, Execution
from core.inference.request import InferenceRequest, InputTensor
from core.inference.response_sender import ResponseSender
from core.inference.tensors import BY_NAME, BYTES, bytes_array, element_count
from core.scheduling.collecting_sender import CollectedAnswer, CollectingSender
from core.scheduling.sequence.controls import Controls, made_tensor
from core.scheduling.sequence.open_sequence import OpenSequence


class DirectInstance:
    """Implements BackendInstance around that of the framework: request i of a batch is that of slot i.

    A slot without a request in the batch gets a null request: READY is false, the other inputs are zeros of the shapes
    that the first request has, and the answer is dropped. `sequences` are those of the instance by slot; the batch goes
    up to the highest slot of a request that the instance's batcher has, whether or not it is in the batch.
    """

    def __init__(self, instance: BackendInstance, controls: Controls, sequences: Mapping[int, OpenSequence]) -> None:
        self._instance = instance
        self._controls = controls
        self._sequences = sequences
        self.placement = instance.placement
        self.may_run_inline = instance.may_run_inline
        self.answers_later = instance.answers_later
        self.poisoned = False

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        """Execute `requests`, each in its slot. `items` of the result counts the null requests, too."""
        # Other threads change the slots of other sequences meanwhile; those of these requests stay.
        executed = [(sequence.executed, slot) for slot, sequence in list(self._sequences.items())]
        places = {request: slot for request, slot in executed if request is not None}
        slots = [places[request] for request in requests]
        size = max(places.values()) + 1
        batch = [self._null(requests[0])] * size
        later: list[ResponseSender] = [_nobody() for _ in range(size)] if senders else []
        for index, slot in enumerate(slots):
            batch[slot] = requests[index]
            if senders:
                later[slot] = senders[index]
        try:
            execution = self._instance.execute(batch, [1] * size, later)
        finally:
            self.poisoned = self._instance.poisoned
        if len(execution.outputs) == size:
            execution.outputs = [execution.outputs[slot] for slot in slots]
            execution.items = size
        return execution

    def close(self) -> None:
        self._instance.close()

    def _null(self, like: InferenceRequest) -> InferenceRequest:
        not_ready = self._controls.not_ready
        inputs = [not_ready.get(tensor.name) or _zeros(tensor) for tensor in like.inputs]
        return InferenceRequest(like.model_name, inputs, model_version=like.model_version, outputs=like.outputs)


def _zeros(tensor: InputTensor) -> InputTensor:
    datatype, shape = BY_NAME[tensor.datatype], tensor.array.shape
    array = bytes_array([b""] * element_count(shape), shape) if datatype is BYTES else np.zeros(shape, datatype.dtype)
    return made_tensor(tensor.name, datatype, array)


def _nobody() -> ResponseSender:
    return CollectingSender(CollectedAnswer())
