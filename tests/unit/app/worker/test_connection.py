from __future__ import annotations

import socket

import gevent
import numpy as np

from app.worker.clock import CoarseClock
from app.worker.connection import Connection
from app.worker.request_body import RequestBody
from app.worker.send_batching import SendBatching

LIMIT_S = 10
SIZE = 70_000


def test_body_that_leaves_shared_memory_during_the_wait_gets_the_next_bytes() -> None:
    """Nothing may refer to the shared memory from then on, or it is never free again."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, "", CoarseClock(), SendBatching(gevent.get_hub()), [], shares_memory=True)
    body = RequestBody(SIZE, b"first ", 0, lambda size: np.zeros(size, np.uint8))
    shared = body.memory
    with theirs:
        receiving = gevent.spawn(connection.receive_body, body)
        gevent.sleep(0)
        body.leave_shared()
        theirs.send(b"second")
        assert receiving.get(timeout=LIMIT_S) == 6
        connection.close()
    assert bytes(body.memory[:12]) == b"first second"
    assert bytes(shared[:12]) == b"first " + bytes(6)
