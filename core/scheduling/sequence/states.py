"""Implicit state: what a model wrote in one request of a sequence, it reads in the next one.

Source: docs/spec/schedulers.md section 3.4, "Implicit state".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from core.config.model_spec import ModelSpec
from core.inference.layout import TensorLayout, layout_of
from core.inference.request import Inputs, InputTensor, PackedInputs
from core.inference.response import Outputs, OutputTensor, PackedOutputs
from core.inference.tensors import BY_NAME, Array, Shape, wire_bytes
from core.memo import Memo
from core.scheduling.sequence.controls import made_tensor

# The first value of each state, by input, without batch dimension.
InitialStates = Mapping[str, Array]


class _Cut(NamedTuple):
    """Where the outputs of the client end in a run, what they are, and what the states after them are as inputs."""

    end: int
    outputs: TensorLayout
    states: TensorLayout


class States:
    """The states of one model. Those of a sequence are inputs, which never change: each response makes new ones.

    `first` are those with which a sequence begins. `are_variable`: their shapes may differ between sequences. States
    that the backend wrote as one run of bytes after the client's outputs stay one. Any thread.
    """

    def __init__(self, spec: ModelSpec, initial: InitialStates) -> None:
        sequence = spec.sequence
        assert sequence is not None
        self._specs = sequence.states
        self._client_outputs = frozenset(spec.outputs)
        self._names = tuple(state.output_name for state in self._specs)
        self._cuts: Memo[tuple[TensorLayout, tuple[str, ...]], _Cut | None] = Memo(256)
        self.are_variable = any(-1 in state.dims for state in self._specs)
        batching = spec.max_batch_size > 0
        tensors = []
        for state in self._specs:
            array = initial[state.input_name]
            tensors.append(made_tensor(state.input_name, state.datatype, array[None, ...] if batching else array))
        self.first: Inputs = tensors
        if all(state.datatype.size for state in self._specs):
            layout = layout_of([(each.name, each.datatype, each.shape, each.data.nbytes) for each in tensors])
            self.first = PackedInputs(layout, memoryview(b"".join([wire_bytes(each.array) for each in tensors])))

    def shapes(self, states: Inputs) -> tuple[Shape, ...]:
        """What must be equal within a batch."""
        if type(states) is PackedInputs:
            return tuple([shape for _, _, shape, _, _ in states.layout.entries])
        return tuple([tensor.shape for tensor in states])

    def wanted(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """The outputs to ask the model for if the client asked for `outputs`; empty for all."""
        return (*outputs, *[name for name in self._names if name not in outputs]) if outputs else outputs

    def taken(self, outputs: Outputs, wanted: tuple[str, ...], states: Inputs) -> tuple[Outputs, Inputs]:
        """The outputs that a client gets who asked for `wanted`, and the states after a response with `outputs`.

        A state that the model did not write is the one of `states`.
        """
        if type(outputs) is PackedOutputs:
            key = outputs.layout, wanted
            try:
                cut = self._cuts[key]
            except KeyError:
                cut = self._cuts[key] = self._cut(outputs.layout, wanted)
            if cut is not None:
                content = outputs.content
                # A run is a part of a batch's memory, which must not live as long as the states.
                kept = memoryview(bytes(content[cut.end :]))
                return PackedOutputs(cut.outputs, content[: cut.end]), PackedInputs(cut.states, kept)
        written = {output.name: output for output in outputs}
        after: list[InputTensor] = [
            _copied(spec.input_name, written[spec.output_name]) if spec.output_name in written else tensor
            for spec, tensor in zip(self._specs, states, strict=True)
        ]
        return self.for_client(outputs, wanted), after

    def for_client(self, outputs: Outputs, wanted: tuple[str, ...]) -> list[OutputTensor]:
        """The outputs that a client gets who asked for `wanted`."""
        names = wanted or self._client_outputs
        return [output for output in outputs if output.name in names]

    def _cut(self, layout: TensorLayout, wanted: tuple[str, ...]) -> _Cut | None:
        """None if the states are not all there, after the client's outputs and in their order, or are among them."""
        count = len(layout.entries) - len(self._names)
        client, own = layout.entries[:count], layout.entries[count:]
        names = frozenset(wanted) or self._client_outputs
        if tuple(name for name, *_ in own) != self._names or not names.isdisjoint(self._names):
            return None
        if any(name not in names for name, *_ in client):
            return None
        as_inputs = [
            (spec.input_name, datatype, shape, end - start)
            for spec, (_, datatype, shape, start, end) in zip(self._specs, own, strict=True)
        ]
        as_outputs = [(name, datatype, shape, end - start) for name, datatype, shape, start, end in client]
        return _Cut(own[0][3], layout_of(as_outputs), layout_of(as_inputs))


def _copied(name: str, output: OutputTensor) -> InputTensor:
    """A written state as an input, without the memory of its batch."""
    return made_tensor(name, BY_NAME[output.datatype], np.array(output.array, order="C"))
