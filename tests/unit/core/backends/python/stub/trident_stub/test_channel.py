"""The channel in a process that the model forked."""

from __future__ import annotations

import os
import socket

import pytest
from trident_stub.channel import Channel, ServerGone
from trident_stub.shared_memory import SharedMemory
from trident_stub.wire import LOG


def test_a_forked_process_has_no_server() -> None:
    ours, theirs = socket.socketpair()
    memory = os.memfd_create("test")
    os.truncate(memory, 1 << 16)
    channel = Channel(theirs, SharedMemory(memory))
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
