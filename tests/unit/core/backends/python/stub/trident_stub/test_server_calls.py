"""The credit of a response sender: how much it may send before the server has taken some."""

from __future__ import annotations

from trident_stub.server_calls import OpenRequest
from trident_stub.wire import FIRST_CREDIT, FIRST_CREDIT_BYTES, WAITS


def test_a_sender_waits_after_so_many_responses() -> None:
    request = OpenRequest()
    assert [request.send(10) for _ in range(FIRST_CREDIT)] == [0] * (FIRST_CREDIT - 1) + [WAITS]
    assert not request.may_send
    request.take(1)
    assert request.may_send
    assert request.send(10) == WAITS


def test_a_sender_waits_after_so_many_bytes() -> None:
    request = OpenRequest()
    assert request.send(10) == 0
    assert request.send(FIRST_CREDIT_BYTES) == WAITS
    request.take(1)  # the small one
    assert not request.may_send
    request.take(1)
    assert request.may_send


def test_the_sender_of_a_cancelled_request_waits_for_nothing() -> None:
    request = OpenRequest()
    request.is_cancelled = True
    assert request.send(FIRST_CREDIT_BYTES) == 0
    assert request.may_send
