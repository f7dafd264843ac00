from __future__ import annotations

from typing import Any

import pytest

from trident.app.worker.listening_sockets import PortDispatcher


def named(name: bytes) -> Any:
    return lambda environ, start_response: [name]


def test_the_dispatcher_calls_the_application_of_the_port() -> None:
    dispatcher = PortDispatcher({8000: named(b"http"), 8002: named(b"metrics")})
    assert list(dispatcher({"SERVER_PORT": "8002"}, None)) == [b"metrics"]  # type: ignore[arg-type]


def test_the_dispatcher_raises_for_an_unknown_port() -> None:
    dispatcher = PortDispatcher({8000: named(b"http")})
    assert list(dispatcher.application_for(8000)({}, None)) == [b"http"]  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        dispatcher.application_for(8001)
