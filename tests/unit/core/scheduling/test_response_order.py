"""Responses are delivered in the order of arrival, without a lock held."""

from __future__ import annotations

import random
import threading
from functools import partial

from tests.unit.pending_requests import pending_request
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.response import InferenceResponse
from trident.core.scheduling.open_requests import ResponseOrder


def answer(order: ResponseOrder, request: PendingRequest) -> None:
    order.respond(request, InferenceResponse("m", 1, [], id=request.request.id))


def arrivals(order: ResponseOrder, count: int) -> list[PendingRequest]:
    requests = [pending_request(str(number)) for number in range(count)]
    for request in requests:
        order.enter(request)
    return requests


def test_later_responses_wait_for_earlier_ones() -> None:
    left: list[str] = []
    order = ResponseOrder(lambda request, response: left.append(response.id))
    requests = arrivals(order, 4)
    answer(order, requests[2])
    answer(order, requests[1])
    assert left == []
    answer(order, requests[0])
    assert left == ["0", "1", "2"]
    answer(order, requests[3])
    assert left == ["0", "1", "2", "3"]


def test_a_callback_may_enter_and_complete_requests() -> None:
    left: list[str] = []

    def deliver(request: PendingRequest, response: InferenceResponse) -> None:
        left.append(response.id)
        if response.id == "0":
            order.enter(late)
            answer(order, late)

    order = ResponseOrder(deliver)
    late = pending_request("late")
    requests = arrivals(order, 2)
    answer(order, requests[0])
    assert left == ["0"]
    answer(order, requests[1])
    assert left == ["0", "1", "late"]


def test_order_holds_across_threads() -> None:
    left: list[int] = []
    order = ResponseOrder(lambda request, response: left.append(int(response.id)))
    requests = arrivals(order, 2000)
    shuffled = requests[:]
    random.Random(7).shuffle(shuffled)

    def complete(share: list[PendingRequest]) -> None:
        for request in share:
            answer(order, request)

    threads = [threading.Thread(target=complete, args=(shuffled[first::4],)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert left == list(range(2000))


def test_callers_are_flushed_after_their_responses_are_delivered() -> None:
    """This includes requests of other batches that waited for this response."""
    events: list[str] = []
    order = ResponseOrder(lambda request, response: events.append(response.id))
    requests = arrivals(order, 4)
    tells = [partial(events.append, f"{front_end} told") for front_end in "ab"]
    for number, request in enumerate(requests):
        request.flush = tells[number % 2]
    answer(order, requests[1])
    answer(order, requests[2])
    assert events == []
    answer(order, requests[0])
    assert events[:3] == ["0", "1", "2"]
    assert sorted(events[3:]) == ["a told", "b told"]
    answer(order, requests[3])
    assert events[5:] == ["3", "b told"]
