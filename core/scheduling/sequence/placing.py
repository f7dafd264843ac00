"""Requests as the model gets them: with the tensors that tell of their sequence."""

from __future__ import annotations

from core.config.model_spec import ModelSpec
from core.inference.layout import TensorLayout, layout_of
from core.inference.request import InferenceRequest, Inputs, PackedInputs
from core.inference.tensors import BYTES, Buffer
from core.memo import Memo
from core.scheduling.sequence.controls import Controls
from core.scheduling.sequence.states import States

_LayoutKey = tuple[TensorLayout, TensorLayout | None]


class Placing:
    """Adds the controls and the states of one model. Inputs that are one run of bytes stay one. Any thread."""

    def __init__(self, spec: ModelSpec, controls: Controls, states: States | None) -> None:
        self._controls = controls
        self._states = states
        self._adds_nothing = not controls.not_ready and states is None
        # The arrays of other inputs are not the bytes that arrived: validation has made them.
        is_plain = all(tensor.datatype is not BYTES and tensor.model_dims is None for tensor in spec.inputs.values())
        self._packs = is_plain and controls.described is not None
        self._layouts: Memo[_LayoutKey, TensorLayout | None] = Memo(256)

    def placed(self, sent: InferenceRequest, states: Inputs) -> InferenceRequest:
        """`sent` as the model gets it after `states`; what the client sent stays unchanged."""
        if self._adds_nothing:
            return sent
        inputs = self._packed(sent, states)
        if inputs is None:
            inputs = [*sent.inputs, *self._controls.of(sent), *states]
        placed = sent.with_inputs(inputs, model_version=sent.model_version, id=sent.id)
        placed.arrived_ns, placed.trace = sent.arrived_ns, sent.trace
        if self._states is not None:
            placed.outputs = self._states.wanted(sent.outputs)
        return placed

    def _packed(self, sent: InferenceRequest, states: Inputs) -> Inputs | None:
        """The inputs as one run; None if something is not a run."""
        inputs, controls = sent.inputs, self._controls
        if not self._packs or type(inputs) is not PackedInputs:
            return None
        parts: list[Buffer] = [inputs.content, controls.content(sent)]
        of_states = None
        if self._states is not None:
            if type(states) is not PackedInputs:
                return None
            parts.append(states.content)
            of_states = states.layout
        key = inputs.layout, of_states
        try:
            layout = self._layouts[key]
        except KeyError:
            layout = self._layouts[key] = self._layout(*key)
        return None if layout is None else PackedInputs(layout, memoryview(b"".join(parts)))

    def _layout(self, inputs: TensorLayout, states: TensorLayout | None) -> TensorLayout | None:
        """None if an input has no items: validation counts it as one."""
        if any(0 in shape for _, _, shape, _, _ in inputs.entries):
            return None
        entries = [*inputs.entries, *(states.entries if states is not None else ())]
        described = [(name, datatype, shape, end - start) for name, datatype, shape, start, end in entries]
        count = len(inputs.entries)
        described[count:count] = self._controls.described or ()
        return layout_of(described)
