"""Implicit state: what a model wrote in one request of a sequence, it reads in the next one.

Source: docs/spec/schedulers.md section 3.4, "Implicit state".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from core.config.model_spec import ModelSpec
from core.inference.request import InferenceRequest, InputTensor
from core.inference.response import Outputs, OutputTensor
from core.inference.tensors import BY_NAME, Array, Shape
from core.scheduling.sequence.controls import made_tensor

# The first value of each state, by input, without batch dimension.
InitialStates = Mapping[str, Array]
# The states of one sequence, in the order of the configuration. They never change: each response makes new ones.
StateTensors = tuple[InputTensor, ...]


class States:
    """The states of one model. Any thread.

    `first` are those with which a sequence begins. `are_variable`: their shapes may differ between sequences.
    """

    def __init__(self, spec: ModelSpec, initial: InitialStates) -> None:
        sequence = spec.sequence
        assert sequence is not None
        self._specs = sequence.states
        self._client_outputs = frozenset(spec.outputs)
        self._names = tuple(state.output_name for state in self._specs)
        batching = spec.max_batch_size > 0
        self.first: StateTensors = tuple(
            made_tensor(state.input_name, state.datatype, _with_batch(initial[state.input_name], batching))
            for state in self._specs
        )
        self.are_variable = any(-1 in state.dims for state in self._specs)

    def shapes(self, states: StateTensors) -> tuple[Shape, ...]:
        """What must be equal within a batch."""
        return tuple([tensor.shape for tensor in states])

    def wanted(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """The outputs to ask the model for if the client asked for `outputs`; empty for all."""
        return (*outputs, *[name for name in self._names if name not in outputs]) if outputs else outputs

    def after(self, states: StateTensors, outputs: Outputs) -> StateTensors:
        """The states after a response with `outputs`. A state that the model did not write stays."""
        written = {output.name: output for output in outputs if output.name in self._names}
        return tuple(
            [
                _copied(spec.input_name, written[spec.output_name]) if spec.output_name in written else tensor
                for spec, tensor in zip(self._specs, states, strict=True)
            ]
        )

    def for_client(self, request: InferenceRequest, outputs: Outputs) -> list[OutputTensor]:
        """The outputs that the client of `request` gets."""
        wanted = request.outputs or self._client_outputs
        return [output for output in outputs if output.name in wanted]


def _copied(name: str, output: OutputTensor) -> InputTensor:
    """A written state as an input. Most results are parts of a batch's memory, which must not live as long."""
    return made_tensor(name, BY_NAME[output.datatype], np.array(output.array, order="C"))


def _with_batch(array: Array, batching: bool) -> Array:
    return array[None, ...] if batching else array
