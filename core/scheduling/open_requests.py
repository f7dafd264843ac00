"""The open requests of one model instance that answers through senders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from core.config.model_spec import ModelSpec
from core.errors import BackendFailed, InvalidRequest, RequestCancelled, ServerError
from core.inference.pending_request import PendingRequest
from core.inference.request import Parameter
from core.inference.response import InferenceResponse, Outputs
from core.inference.window_limits import WindowLimits
from core.observability.model_statistics import ModelStatistics
from core.observability.response_statistics import ResponseKind
from core.observability.statistics import FailureReason
from core.scheduling.delivery import Respond
from core.scheduling.execution import Clock
from core.scheduling.open_request import OpenRequest
from core.scheduling.rejection import Rejection, reject

if TYPE_CHECKING:
    from core.scheduling.instance_pool import InstancePool

# Queues a request that its model gave back to be executed again. Raises a ServerError if that cannot be.
Again = Callable[[PendingRequest], None]


def refuse_again(pending: PendingRequest) -> None:
    """Of a model without iterative sequences. Raises InvalidRequest, with Triton's text."""
    raise InvalidRequest(
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag.",
        hint="add sequence_batching { iterative_sequence: true } to config.pbtxt",
        model=pending.request.model_name,
    )


def lost_between_iterations(model: str) -> BackendFailed:
    """The error of a request that cannot be executed again."""
    return BackendFailed(
        f"the process of model '{model}' ended between two iterations of the request, and with it what the model knew "
        "of the request",
        hint="send the request again",
        model=model,
    )


_log = logging.getLogger("trident.scheduling")


class OpenRequests:
    """Opens requests, delivers their responses, and counts those that sent their final response. Any thread.

    `size` is guarded by the scheduler's lock. It counts a request from when the instance takes it until its final
    response was delivered.
    """

    def __init__(
        self,
        spec: ModelSpec,
        statistics: ModelStatistics,
        respond: Respond,
        refuse: Respond,
        pool: InstancePool,
        window: WindowLimits,
        clock: Clock,
        again: Again,
    ) -> None:
        self.size = 0
        self.window = window
        self._name = spec.name
        self._version = spec.version
        self._statistics = statistics
        self._respond = respond
        self._refuse = refuse
        self._pool = pool
        self.clock = clock
        self._has_noted_late = False
        self._again = again
        # How often the instance has lost what it knew of its requests.
        self.losses = 0
        # Those to be executed again, by their pending requests, and those of them whose client must take more first.
        self._given_back: dict[PendingRequest, OpenRequest] = {}
        self._paused: set[OpenRequest] = set()
        self._waits_for_nobody = False

    def open(self, batch: Sequence[PendingRequest], now_ns: int) -> list[OpenRequest]:
        """Open the requests of a batch that is executed now; those that are executed again are open already."""
        if not self._given_back:
            return [OpenRequest(pending, now_ns, self) for pending in batch]
        return [
            self._given_back.pop(pending) if pending in self._given_back else OpenRequest(pending, now_ns, self)
            for pending in batch
        ]

    def give_back(self, request: OpenRequest) -> None:
        """Execute `request` again, when its client has taken enough of what was sent."""
        if request.is_closed:  # the model ended it nevertheless
            return
        self._given_back[request.pending] = request
        self._paused.add(request)
        if request.pause() or request.is_cancelled or self._waits_for_nobody:
            self.resume(request)

    def resume(self, request: OpenRequest) -> None:
        """Queue a paused request to be executed again. Any thread; more than one may try."""
        try:
            self._paused.remove(request)
        except KeyError:
            return
        pending = request.pending
        try:
            if request.losses != self.losses:
                raise lost_between_iterations(self._name)
            self._again(pending)
        except ServerError as error:
            reject(Rejection(pending, error), self._statistics, self._end, self.clock())
        else:
            self._pool.close_one(self)

    def resume_all(self) -> None:
        """Let no request wait for its client any more."""
        self._waits_for_nobody = True
        for request in list(self._paused):
            self.resume(request)

    def lose(self) -> list[Rejection]:
        """The instance has lost what it knew of its requests: none that it gave back is executed again.

        Returns those that may be queued for it, to be rejected if they are; the others are answered.
        """
        self.losses += 1
        for request in list(self._paused):
            self.resume(request)
        return [Rejection(pending, lost_between_iterations(self._name)) for pending in list(self._given_back)]

    def has(self, pending: PendingRequest) -> bool:
        """Whether `pending` was executed, and is to be executed again."""
        return pending in self._given_back

    def respond_unrun(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Answer a request that left the queue without being executed, or without being executed again."""
        if self.has(pending):
            self._pool.open_one(self)
            self._end(pending, response)
        else:
            self._refuse(pending, response)

    def _end(self, pending: PendingRequest, response: InferenceResponse) -> None:
        request = self._given_back.pop(pending)
        if request.claim():
            request.answer(response)

    def response(
        self,
        pending: PendingRequest,
        outputs: Outputs | None,
        final: bool,
        error: ServerError | None,
        parameters: dict[str, Parameter] | None,
    ) -> InferenceResponse:
        """A response to `pending`; without outputs and error an empty one."""
        return InferenceResponse(
            self._name,
            self._version,
            [] if outputs is None or error is not None else outputs,
            id=pending.request.id,
            parameters=parameters,
            error=error,
            final=final,
        )

    def count_response(self, index: int, kind: ResponseKind, duration_ns: int) -> None:
        """Count a response that a sender sent."""
        self._statistics.record_response(index, kind, duration_ns)

    def count(self, request: OpenRequest, now_ns: int) -> None:
        """Count a request whose final response was sent by a sender. Its last response that says something decides."""
        error = request.error
        if error is None:
            self._statistics.record_request(
                request.pending, request.start_ns, request.input_end_ns, request.first_ns or now_ns, now_ns
            )
        else:
            is_cancelled = isinstance(error, RequestCancelled)
            reason = FailureReason.CANCELED if is_cancelled else FailureReason.BACKEND
            self._statistics.record_failure(request.pending, reason, now_ns, error.message)

    def deliver(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Give `response` to the caller. After the final one the request is no longer open."""
        self._respond(pending, response)
        if response.final:
            self._pool.close_one(self)

    def note_late(self) -> None:
        """Log, once, that a response was dropped because it was sent after the final one."""
        if not self._has_noted_late:
            self._has_noted_late = True
            _log.warning(
                "model '%s' answered a request again after its final response; such responses are dropped", self._name
            )
