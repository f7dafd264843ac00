from __future__ import annotations

from typing import Any

from gunicorn.config import Config

from trident.app.worker.connection import Connections
from trident.app.worker.http1.connection import Http1Service
from trident.app.worker.io import CoarseClock
from trident.app.worker.limits import ConnectionLimits


class Application:
    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        return []

    def binary_offset(self, environ: dict[str, Any]) -> int:
        return 12


def service(application: Any, address: Any) -> Http1Service:
    connections = Connections(CoarseClock(), ConnectionLimits(), 10)
    return Http1Service(application, address, Config(), connections)


def test_the_environ_has_the_address_and_the_estimated_offset() -> None:
    environ = service(Application(), ("::1", 8000, 0, 0)).base_environ()
    assert (environ["SERVER_NAME"], environ["SERVER_PORT"]) == ("::1", "8000")
    assert {"REMOTE_ADDR", "REMOTE_PORT", "wsgi.input"} <= environ.keys()
    environ = service(Application(), "/run/x.sock").base_environ()
    assert (environ["SERVER_NAME"], environ["SERVER_PORT"]) == ("/run/x.sock", "")
    assert service(Application(), ("h", 1)).binary_offset({}) == 12
    assert service(lambda environ, start: [], ("h", 1)).binary_offset({}) == 0
