"""The channel in a process that the model forked, and how much a response sender may send before some is taken."""

from __future__ import annotations

import os
import socket

import pytest
from trident_stub.channel import Channel, ServerGone
from trident_stub.server_calls import SenderCredit
from trident_stub.wire import FIRST_CREDIT, FIRST_CREDIT_BYTES, LOG, WAITS

from trident.core.interprocess.shared_memory import SharedMemory


def test_a_forked_process_has_no_server() -> None:
    ours, theirs = socket.socketpair()
    memory = SharedMemory.create(1 << 16)
    channel = Channel(theirs, os.dup(memory.descriptor))
    child = os.fork()
    if child == 0:
        try:
            channel.send(LOG, 0, b"[]")
        except ServerGone as gone:
            os._exit(3 if "forked" in str(gone) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    channel.send(LOG, 0, b"[]")
    ours.setblocking(False)
    assert len(ours.recv(1000)) == 32
    with pytest.raises(BlockingIOError):
        ours.recv(1)
    ours.close()
    theirs.close()
    memory.close()


def test_what_is_sent_together_arrives_at_the_end() -> None:
    ours, theirs = socket.socketpair()
    memory = SharedMemory.create(1 << 16)
    channel = Channel(theirs, os.dup(memory.descriptor))
    ours.setblocking(False)
    with channel.together():
        channel.send(LOG, 0, b"[]")
        channel.send(LOG, 0, b"[]")
        with pytest.raises(BlockingIOError):
            ours.recv(1)
    assert len(ours.recv(1000)) == 64
    channel.send(LOG, 0, b"[]")
    assert len(ours.recv(1000)) == 32
    ours.close()
    theirs.close()
    memory.close()


def test_a_sender_waits_after_so_many_responses() -> None:
    request = SenderCredit()
    assert [request.send(10) for _ in range(FIRST_CREDIT)] == [0] * (FIRST_CREDIT - 1) + [WAITS]
    assert not request.may_send
    request.take(1)
    assert request.may_send
    assert request.send(10) == WAITS


def test_a_sender_waits_after_so_many_bytes() -> None:
    request = SenderCredit()
    assert request.send(10) == 0
    assert request.send(FIRST_CREDIT_BYTES) == WAITS
    request.take(1)  # the small one
    assert not request.may_send
    request.take(1)
    assert request.may_send


def test_the_sender_of_a_cancelled_request_waits_for_nothing() -> None:
    request = SenderCredit()
    request.is_cancelled = True
    assert request.send(FIRST_CREDIT_BYTES) == 0
    assert request.may_send
