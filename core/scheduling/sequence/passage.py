"""The way of a request of a sequence through the batcher of its instance.

Source: docs/spec/schedulers.md sections 3.3 and 3.4.
"""

from __future__ import annotations

from core.config.model_spec import ModelSpec
from core.errors import ServerError
from core.inference.pending_request import PendingRequest
from core.inference.request import Inputs
from core.inference.response import InferenceResponse
from core.scheduling.sequence.controls import Controls
from core.scheduling.sequence.open_sequence import OpenSequence
from core.scheduling.sequence.placing import Placing
from core.scheduling.sequence.states import InitialStates, States


class Passage:
    """Gives a request what the model must know of its sequence, and takes the sequence's states from its responses.

    A sequence has one request in a batcher at a time, and the methods are called for that request alone: without the
    scheduler's lock. `first_states` are those of a sequence that begins.
    """

    def __init__(self, spec: ModelSpec, controls: Controls, initial: InitialStates) -> None:
        assert spec.sequence is not None
        self._states = States(spec, initial) if spec.sequence.states else None
        self.first_states: Inputs = [] if self._states is None else self._states.first
        self._placing = Placing(spec, controls, self._states)

    def enter(self, sequence: OpenSequence, pending: PendingRequest) -> None:
        """Give a request to its instance's batcher. The sequence is told of its responses, and of a refusal as one."""
        lane, sent, states = sequence.lane, pending.request, self._states
        assert lane is not None
        if states is not None:
            if sent.sequence_start:
                sequence.states = states.first
            if states.are_variable:
                pending.batch_key = (*(pending.batch_key or ()), *states.shapes(sequence.states))
        sequence.sent, sequence.on_response = sent, pending.on_response
        pending.request = sequence.executed = self._placing.placed(sent, sequence.states)
        pending.on_response = sequence.respond
        try:
            lane.batcher.submit(pending)
        except ServerError as error:
            sequence.respond(InferenceResponse.failed(sent, error))

    def enter_again(self, sequence: OpenSequence, pending: PendingRequest) -> None:
        """Give the batcher a request once more that its model gave back, with the states as they are now.

        Raises what the batcher raises.
        """
        lane, sent, states = sequence.lane, sequence.sent, self._states
        assert lane is not None
        assert sent is not None
        begun = sent.with_inputs(sent.inputs, model_version=sent.model_version, id=sent.id)
        begun.sequence_start, begun.arrived_ns, begun.trace = False, sent.arrived_ns, sent.trace
        if states is not None and states.are_variable:
            shapes = states.shapes(sequence.states)
            pending.batch_key = (*(pending.batch_key or ())[: -len(shapes)], *shapes)
        pending.request = sequence.executed = self._placing.placed(begun, sequence.states)
        pending.defer = None  # it is for the thread that submitted the request first
        lane.batcher.submit(pending)

    def take(self, sequence: OpenSequence, response: InferenceResponse) -> PendingRequest | None:
        """Take the states from a response, and pass it on if more will come.

        For the final one, which the caller passes on, returns the request as the client sent it.
        """
        pending, sent, on_response = sequence.inside, sequence.sent, sequence.on_response
        assert pending is not None
        assert sent is not None
        assert on_response is not None
        if self._states is not None and response.error is None:
            response.outputs, sequence.states = self._states.taken(response.outputs, sent.outputs, sequence.states)
        if not response.final:
            on_response(response)
            return None
        pending.request, pending.on_response = sent, on_response
        sequence.executed = sequence.sent = sequence.on_response = None
        return pending
