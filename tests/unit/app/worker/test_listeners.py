"""Listening sockets and the applications of their ports."""

from __future__ import annotations

from typing import Any

import pytest

from app.worker.listeners import BindFailed, PortDispatcher, open_listener, open_listeners


def test_taken_port_is_named() -> None:
    with open_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindFailed, match=f"^Socket '127.0.0.1:{port}' already in use $"):
            open_listeners([("127.0.0.1", 0), ("127.0.0.1", port)])


def test_port_may_be_shared_on_request() -> None:
    with open_listener("127.0.0.1", 0, reuse_port=True) as first:
        port = first.getsockname()[1]
        open_listener("127.0.0.1", port, reuse_port=True).close()


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BindFailed, match="cannot be opened"):
        open_listener("192.0.2.1", 0)


def test_dispatcher_asks_the_application_of_the_port() -> None:
    def named(name: bytes) -> Any:
        return lambda environ, start_response: [name]

    dispatcher = PortDispatcher({8000: named(b"http"), 8002: named(b"metrics")})
    assert list(dispatcher({"SERVER_PORT": "8002"}, None)) == [b"metrics"]  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        dispatcher.application_for(8001)
