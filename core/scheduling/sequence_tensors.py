"""The tensors that a request of a sequence has beside those of the client: controls and implicit states.

Source: docs/spec/schedulers.md section 3.4, "Controls" and "Implicit state".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trident.core.backends.backend import BackendInstance, Execution
from trident.core.config.spec import FlagControl, ModelSpec, SequenceSpec
from trident.core.errors import InvalidRequest
from trident.core.inference.pending_request import DeferredOutcome, ResponseSender
from trident.core.inference.request import InferenceRequest, Inputs, InputTensor, PackedInputs
from trident.core.inference.response import Outputs, OutputTensor, PackedOutputs
from trident.core.inference.tensors import (
    BY_NAME,
    BYTES,
    Array,
    Buffer,
    Datatype,
    Shape,
    TensorLayout,
    bytes_array,
    layout_of,
    wire_bytes,
)
from trident.core.memo import Memo


class Controls:
    """Makes the control tensors that a model wants: START, END, READY and the correlation id. Any thread.

    `described` are their names, datatypes, shapes and sizes in bytes; None if the size of the id is not known before.
    """

    def __init__(self, sequence: SequenceSpec, *, batching: bool) -> None:
        self._shape: Shape = (1, 1) if batching else (1,)
        self._id = sequence.correlation_id
        # The low bytes of a number are its bits in any integer type that is as short.
        self._id_size = 0 if self._id is None else self._id.datatype.size
        self._id_mask = (1 << (8 * self._id_size)) - 1
        controls = (sequence.start, sequence.end, sequence.ready)
        places = [(start, end) for start in (False, True) for end in (False, True)]
        self._flags = {place: _flag_tensors(self._shape, controls, (*place, True)) for place in places}
        self._flag_bytes = {
            place: b"".join([tensor.array.tobytes() for tensor in self._flags[place]]) for place in places
        }
        not_ready = _flag_tensors(self._shape, controls, (False, False, False))
        self._has_text = self._id is not None and self._id.datatype is BYTES
        null_id = self._id_tensors("" if self._has_text else 0)
        self.not_ready: dict[str, InputTensor] = {tensor.name: tensor for tensor in (*not_ready, *null_id)}
        """Control tensors of a slot in which no request is ready."""
        self.described: tuple[tuple[str, str, Shape, int], ...] | None = None
        if not self._has_text:
            tensors = self.not_ready.values()
            self.described = tuple((each.name, each.datatype, each.shape, each.data.nbytes) for each in tensors)

    def of(self, request: InferenceRequest) -> Iterator[InputTensor]:
        """The controls of `request`, in the order of `described`."""
        yield from self._flags[request.sequence_start, request.sequence_end]
        yield from self._id_tensors(request.correlation_id)

    def content(self, request: InferenceRequest) -> bytes:
        """The bytes of the controls of `request`, one after the other, if they are `described`."""
        flags = self._flag_bytes[request.sequence_start, request.sequence_end]
        return flags + self._id_bytes(request.correlation_id) if self._id_size else flags

    def id_of(self, number: int) -> int | str:
        return str(number) if self._has_text else number

    def check(self, request: InferenceRequest) -> None:
        """Raise InvalidRequest if the model takes correlation ids of another type than that of `request`, or shorter
        ones: it would take two sequences for one."""
        control = self._id
        if control is None:
            return
        is_text = isinstance(request.correlation_id, str)
        if is_text is not self._has_text:
            raise InvalidRequest(
                f"{request.log_prefix}sequence batching control '{control.name}' data-type is "
                f"'{'BYTES' if is_text else 'UINT64'}', but model '{request.model_name}' expects "
                f"'{control.datatype.name}'",
                hint=f"send sequence_id as {'a number' if is_text else 'a string'}",
            )
        if isinstance(request.correlation_id, int) and request.correlation_id > self._id_mask:
            raise InvalidRequest(
                f"{request.log_prefix}sequence batching control '{control.name}' data-type is "
                f"'{control.datatype.name}', which cannot hold the correlation ID {request.correlation_id}",
                hint=f"send a sequence_id of at most {self._id_mask}",
            )

    def _id_tensors(self, correlation_id: int | str) -> tuple[InputTensor, ...]:
        """One, or none if the model does not want it."""
        control = self._id
        if control is None:
            return ()
        if isinstance(correlation_id, str):
            array = bytes_array([correlation_id.encode(errors="surrogatepass")], self._shape)
        else:
            array = np.frombuffer(self._id_bytes(correlation_id), control.datatype.dtype).reshape(self._shape)
        return (made_tensor(control.name, control.datatype, array),)

    def _id_bytes(self, correlation_id: int | str) -> bytes:
        assert isinstance(correlation_id, int)
        return (correlation_id & self._id_mask).to_bytes(self._id_size, "little")


def _flag_tensors(
    shape: Shape, controls: tuple[FlagControl | None, ...], values: tuple[bool, ...]
) -> tuple[InputTensor, ...]:
    """Requests share them: they never change."""
    tensors = []
    for control, value in zip(controls, values, strict=True):
        if control is not None:
            array = np.full(shape, control.true if value else control.false, control.datatype.dtype)
            tensors.append(made_tensor(control.name, control.datatype, array))
    return tuple(tensors)


def made_tensor(name: str, datatype: Datatype, array: Array) -> InputTensor:
    """An input that no client sent, ready for the backend. `array` is C-contiguous and has all dimensions."""
    flat = array.reshape(-1)
    data = flat if datatype is BYTES else flat.view(np.uint8).data
    tensor = InputTensor(name, datatype.name, array.shape, data)
    tensor.array = array
    return tensor


# The first value of each state, by input, without batch dimension.
InitialStates = Mapping[str, Array]


class _Cut(NamedTuple):
    """End of the client's outputs in a run, their layout, and the layout of the following states as inputs."""

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
        """Return the shapes, which must be equal within a batch."""
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
            tensor
            if (output := written.get(spec.output_name)) is None
            # A copy, because a written state is a part of the memory of its batch.
            else made_tensor(spec.input_name, BY_NAME[output.datatype], np.array(output.array, order="C"))
            for spec, tensor in zip(self._specs, states, strict=True)
        ]
        return self.for_client(outputs, wanted), after

    def for_client(self, outputs: Outputs, wanted: tuple[str, ...]) -> list[OutputTensor]:
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


_LayoutKey = tuple[TensorLayout, TensorLayout | None]


class RequestBuilder:
    """Builds requests with the controls and the states of one model. Inputs that are one run of bytes stay one."""

    def __init__(self, spec: ModelSpec, controls: Controls, states: States | None) -> None:
        self._controls = controls
        self._states = states
        self._adds_nothing = not controls.not_ready and states is None
        # The arrays of other inputs are not the bytes that arrived: validation has made them.
        is_plain = all(tensor.datatype is not BYTES and tensor.model_dims is None for tensor in spec.inputs.values())
        self._packs = is_plain and controls.described is not None
        self._layouts: Memo[_LayoutKey, TensorLayout | None] = Memo(256)

    def built(self, sent: InferenceRequest, states: Inputs) -> InferenceRequest:
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


class SequenceProbe:
    """Implements BackendInstance around an instance: each request is a whole sequence, its START and its END."""

    poisoned = False
    may_run_inline = False

    def __init__(self, instance: BackendInstance, spec: ModelSpec, initial: InitialStates) -> None:
        sequence = spec.sequence
        assert sequence is not None
        self._instance = instance
        self._states = States(spec, initial) if sequence.states else None
        self._builder = RequestBuilder(spec, Controls(sequence, batching=spec.max_batch_size > 0), self._states)
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
        states = self._states
        for request in requests:
            request.correlation_id, request.sequence_start, request.sequence_end = self._id, True, True
        first = states.first if states is not None else []
        placed = [self._builder.built(request, first) for request in requests]
        execution = self._instance.execute(placed, batch_sizes, senders)
        if states is not None:
            pairs = zip(requests, execution.outputs, strict=True)
            execution.outputs = [
                outcome
                if isinstance(outcome, DeferredOutcome | Exception)
                else states.for_client(outcome, request.outputs)
                for request, outcome in pairs
            ]
        return execution

    def close(self) -> None:
        """The instance is closed by those who made it."""
