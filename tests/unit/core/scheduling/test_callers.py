from __future__ import annotations

import sys

from tests.unit.pending_requests import pending_request
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import Caller
from trident.core.scheduling.queue import SETTLED_DELAYS, SETTLED_NS, Callers

DELAY_NS = 1000
LATER_NS = SETTLED_NS + 1


def request_of(caller: Caller | None) -> PendingRequest:
    pending = pending_request()
    pending.request.caller = caller
    return pending


def noted(*callers: Caller | None, delay_ns: int = DELAY_NS) -> tuple[Callers, list[PendingRequest]]:
    """Callers that have sent a request at 1, and these requests."""
    found = Callers(delay_ns)
    requests = [request_of(caller) for caller in callers]
    for request in requests:
        found.note(request, 1)
    return found, requests


def all_wait(callers: Callers, requests: list[PendingRequest], now_ns: int) -> bool:
    answer = callers.all_wait(requests, now_ns)
    assert callers.may_all_wait(len(requests), now_ns) or not answer
    return answer


def test_all_wait_when_each_of_them_has_a_request() -> None:
    callers, requests = noted(Caller(), Caller(), Caller())
    assert all_wait(callers, requests, LATER_NS)
    assert not all_wait(callers, requests[:2], LATER_NS)
    assert not all_wait(callers, [requests[0], requests[1], requests[1]], LATER_NS)


def test_nobody_is_known_to_wait_while_new_callers_come() -> None:
    callers, requests = noted(Caller(), Caller())
    assert not all_wait(callers, requests, LATER_NS - 1)
    requests.append(request_of(Caller()))
    callers.note(requests[-1], LATER_NS)
    assert not all_wait(callers, requests, LATER_NS)
    assert all_wait(callers, requests, LATER_NS + SETTLED_NS)


def test_a_long_delay_takes_longer_without_new_callers() -> None:
    callers, requests = noted(Caller(), delay_ns=SETTLED_NS)
    assert not all_wait(callers, requests, SETTLED_DELAYS * SETTLED_NS)
    assert all_wait(callers, requests, SETTLED_DELAYS * SETTLED_NS + 1)


def test_a_request_without_a_caller_may_be_followed_by_others() -> None:
    callers, requests = noted(Caller())
    other = request_of(None)
    callers.note(other, LATER_NS)
    assert not all_wait(callers, [*requests, other], LATER_NS)
    assert not all_wait(callers, requests, LATER_NS + SETTLED_NS - 1)
    assert all_wait(callers, requests, LATER_NS + SETTLED_NS)


def test_a_caller_that_has_gone_is_not_waited_for() -> None:
    gone = Caller()
    callers, requests = noted(Caller(), gone)
    assert not all_wait(callers, requests[:1], LATER_NS)
    gone.is_open = False
    assert not all_wait(callers, requests[:1], LATER_NS + SETTLED_NS - 1)
    assert all_wait(callers, requests[:1], LATER_NS + SETTLED_NS)


def test_callers_that_ask_once_and_go_are_not_kept() -> None:
    callers, requests = noted(Caller())
    first = Caller()
    for caller in (first, *(Caller() for _ in range(1000))):
        callers.note(request_of(caller), LATER_NS)
        caller.is_open = False
    assert sys.getrefcount(first) == 2  # the name and the argument
    assert all_wait(callers, requests, LATER_NS + SETTLED_NS)
