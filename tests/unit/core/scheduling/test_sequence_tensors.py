"""Requests as the model gets them, and the states after its responses: as one run of bytes, and tensor by tensor."""

from __future__ import annotations

import numpy as np

from tests.unit.core.scheduling.sequence_bench import CONTROLS, SUM, spec_of
from trident.core.config.spec import ModelSpec
from trident.core.inference.request import InferenceRequest, Inputs, InputTensor, PackedInputs, RequestTrace
from trident.core.inference.response import OutputTensor, PackedOutputs
from trident.core.inference.tensors import layout_of
from trident.core.scheduling.sequence_tensors import Controls, RequestBuilder, States

OTHER = 'state { input_name: "N_IN" output_name: "N" data_type: TYPE_INT8 dims: [ 1 ] }'
X = np.array([[5]], np.int32)
INITIAL = {"SUM_IN": np.array([3], np.int32), "N_IN": np.array([4], np.int8)}


def made(more: str = CONTROLS + SUM + OTHER) -> tuple[ModelSpec, States, RequestBuilder]:
    spec = spec_of("oldest {} " + more)
    assert spec.sequence is not None
    states = States(spec, INITIAL)
    return spec, states, RequestBuilder(spec, Controls(spec.sequence, batching=True), states)


def as_run() -> PackedInputs:
    return PackedInputs(layout_of([("X", "INT32", (1, 1), 4)]), memoryview(X.tobytes()))


def as_list() -> list[InputTensor]:
    return [InputTensor("X", "INT32", (1, 1), memoryview(X.tobytes()))]


def values(inputs: Inputs) -> dict[str, list[list[float]]]:
    return {tensor.name: tensor.array.tolist() for tensor in inputs}


def test_the_inputs_of_a_request_are_the_same_in_both_forms() -> None:
    _, states, builder = made()
    for inputs in (as_run(), as_list()):
        sent = InferenceRequest("m", inputs, correlation_id=2**64 - 1, sequence_start=True)
        placed = builder.built(sent, states.first)
        assert (type(placed.inputs) is PackedInputs) is (type(inputs) is PackedInputs)
        assert values(placed.inputs) == {
            "X": [[5]],
            "START": [[1]],
            "END": [[-1.0]],
            "READY": [[True]],
            "ID": [[2**64 - 1]],
            "SUM_IN": [[3]],
            "N_IN": [[4]],
        }
        assert len(sent.inputs) == 1


def test_the_states_after_a_response_are_the_same_in_both_forms() -> None:
    _, states, _ = made()
    arrays = {"OUT": X, "SUM": np.array([[7]], np.int32), "N": np.array([[9]], np.int8)}
    tensors = [OutputTensor(name, "INT8" if name == "N" else "INT32", (1, 1), array) for name, array in arrays.items()]
    layout = layout_of([(each.name, each.datatype, each.shape, each.array.nbytes) for each in tensors])
    run = PackedOutputs(layout, memoryview(b"".join(each.array.tobytes() for each in tensors)))
    for outputs in (run, tensors):
        for_client, after = states.taken(outputs, (), states.first)
        assert [(each.name, each.array.tolist()) for each in for_client] == [("OUT", [[5]])]
        assert values(after) == {"SUM_IN": [[7]], "N_IN": [[9]]}


def test_a_state_that_was_not_written_stays() -> None:
    _, states, _ = made()
    outputs = [OutputTensor("N", "INT8", (1, 1), np.array([[9]], np.int8))]
    for_client, after = states.taken(outputs, ("OUT",), states.first)
    assert (list(for_client), values(after)) == ([], {"SUM_IN": [[3]], "N_IN": [[9]]})


def test_the_model_gets_what_belongs_to_the_request_and_clients_no_states() -> None:
    _, states, builder = made()
    sent = InferenceRequest("m", as_run(), outputs=("OUT",), correlation_id=1)
    assert builder.built(sent, states.first).outputs == ("OUT", "SUM", "N")
    _, states, builder = made()
    sent = InferenceRequest("m", as_list(), id="a", correlation_id=1, sequence_start=True, timeout_us=7)
    sent.trace, sent.arrived_ns = RequestTrace(number=1), 5
    placed = builder.built(sent, states.first)
    assert (placed.id, placed.correlation_id, placed.timeout_us, placed.arrived_ns) == ("a", 1, 7, 5)
    assert placed.trace is sent.trace
