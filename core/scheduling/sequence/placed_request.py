"""A request as the model gets it: with the tensors that tell of its sequence."""

from __future__ import annotations

from core.inference.request import InferenceRequest, InputTensor
from core.scheduling.sequence.states import States, StateTensors


def placed_request(
    sent: InferenceRequest, controls: tuple[InputTensor, ...], states: States | None, tensors: StateTensors
) -> InferenceRequest:
    """`sent` with its `controls` and the `tensors` of its states; what the client sent stays unchanged."""
    inputs = [*sent.inputs, *controls, *tensors]
    placed = sent.with_inputs(inputs, model_version=sent.model_version, id=sent.id)
    placed.arrived_ns = sent.arrived_ns
    if states is not None:
        placed.outputs = states.wanted(sent.outputs)
    return placed
