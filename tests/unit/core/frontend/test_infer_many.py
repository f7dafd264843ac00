from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.unit.fake_engine import FakeEngine, empty_response
from trident.core.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, RequestCancelled
from trident.core.frontend.bridge import AT_ONCE, infer_many
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse


def requests(count: int) -> list[InferenceRequest]:
    return [InferenceRequest("simple", [], id=str(number)) for number in range(count)]


class HoldingEngine(FakeEngine):
    """Keeps requests until it has `AT_ONCE` or the last one; then answers them, the latest first."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.most = 0
        self._left = total
        self._held: list[PendingRequest] = []

    def submit(self, pending: PendingRequest) -> None:
        self._held.append(pending)
        self._left -= 1
        self.most = max(self.most, len(self._held))
        if len(self._held) == AT_ONCE or not self._left:
            held, self._held = self._held, []
            threading.Thread(target=self._answer, args=(held,)).start()

    def _answer(self, held: list[PendingRequest]) -> None:
        for pending in reversed(held):
            pending.on_response(InferenceResponse("simple", 1, [], id=pending.request.id))


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, 3 * AT_ONCE + 1])
def test_responses_have_the_order_of_the_requests(count: int) -> None:
    engine = HoldingEngine(count)
    assert [response.id for response in infer_many(engine, requests(count))] == [str(n) for n in range(count)]
    assert engine.most == min(count, AT_ONCE)


def test_the_first_error_is_raised_and_the_others_are_cancelled() -> None:
    def respond(request: InferenceRequest) -> InferenceResponse | None:
        if request.id != "3":
            return None if request.id == "1" else empty_response(request)
        return InferenceResponse("simple", 1, [], error=InvalidRequest("no"))

    engine = FakeEngine(respond)
    given = requests(100)
    with pytest.raises(InvalidRequest, match=r"^no$"):
        infer_many(engine, given)
    assert given[1] in engine.cancelled
    assert ("cancel", "simple") in engine.calls
    assert len(engine._pending) == 0


def test_a_disconnected_client_cancels_all_requests_and_a_connected_one_gets_responses() -> None:
    engine = FakeEngine(lambda request: None)
    given = requests(3)
    with pytest.raises(RequestCancelled, match="went away"):
        infer_many(engine, given, lambda: True)
    assert engine.cancelled == given
    engine = HoldingEngine(2)
    assert len(infer_many(engine, requests(2), lambda: False)) == 2


def test_a_disconnected_client_is_noticed_while_answers_arrive() -> None:
    """Each answer arrives within the period: the model is fast and there are many instances."""
    answered: list[str] = []

    def respond(request: InferenceRequest) -> InferenceResponse:
        answered.append(request.id)
        return empty_response(request)

    def endless() -> Iterator[InferenceRequest]:
        while True:
            yield InferenceRequest("simple", [])

    with pytest.raises(RequestCancelled, match="went away"):
        infer_many(FakeEngine(respond), endless(), lambda: True)
    assert len(answered) > AT_ONCE


def test_an_expired_deadline_cancels_requests_without_awaiting_them() -> None:
    class Late(FakeEngine):
        """Never answers, not even a cancelled request."""

        def cancel(self, pending: PendingRequest) -> None:
            self.cancelled.append(pending.request)

    def too_late() -> bool:
        raise DeadlineExceeded("too late")

    engine = Late(lambda request: None)
    given = requests(3)
    with pytest.raises(DeadlineExceeded, match="too late"):
        infer_many(engine, given, too_late)
    assert engine.cancelled == given


def test_requests_are_made_only_when_they_can_be_submitted() -> None:
    made: list[int] = []

    def make() -> Iterator[InferenceRequest]:
        for number in range(AT_ONCE + 5):
            made.append(number)
            yield InferenceRequest("simple", [], id=str(number))

    def respond(request: InferenceRequest) -> InferenceResponse:
        assert len(made) <= int(request.id) + 1
        return empty_response(request)

    assert len(infer_many(FakeEngine(respond), make())) == AT_ONCE + 5


def test_a_failing_iterator_cancels_the_requests_in_flight() -> None:
    engine = FakeEngine(lambda request: None)
    first = InferenceRequest("simple", [])

    def make() -> Iterator[InferenceRequest]:
        yield first
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        infer_many(engine, make())
    assert engine.cancelled == [first]


def test_the_held_version_is_named_by_all_requests_and_released() -> None:
    engine = FakeEngine()
    given = requests(3)
    infer_many(engine, given)
    assert [request.model_version for request in given] == [-2, -2, -2]
    assert (engine.holds, engine.released) == ([("simple", -1)], [("simple", -2)])
    engine = FakeEngine(lambda request: InferenceResponse("simple", 1, [], error=InvalidRequest("no")))
    with pytest.raises(InvalidRequest):
        infer_many(engine, requests(3))
    assert engine.released == [("simple", -2)]


def test_no_request_is_submitted_when_no_version_serves() -> None:
    submitted: list[InferenceRequest] = []
    engine = FakeEngine(submitted.append)
    engine.refusal = ModelNotFound("no")
    with pytest.raises(ModelNotFound):
        infer_many(engine, requests(2))
    assert (submitted, engine.released) == ([], [])
