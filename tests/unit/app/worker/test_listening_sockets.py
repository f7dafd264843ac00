from __future__ import annotations

import pytest

from app.worker.listening_sockets import BindFailed, open_listener, open_listeners


def test_a_taken_port_is_named() -> None:
    with open_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindFailed, match=f"^Socket '127.0.0.1:{port}' already in use $"):
            open_listeners([("127.0.0.1", 0), ("127.0.0.1", port)])


def test_a_port_may_be_shared_on_request() -> None:
    with open_listener("127.0.0.1", 0, reuse_port=True) as first:
        port = first.getsockname()[1]
        open_listener("127.0.0.1", port, reuse_port=True).close()


def test_the_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BindFailed, match="cannot be opened"):
        open_listener("192.0.2.1", 0)
