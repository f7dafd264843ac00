"""The site of one WSGI application without an engine: what gunicorn's own command line serves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from wsgiref.types import WSGIApplication

from app.sites.site import Http2Port
from app.worker.tls import ServerTls
from core.frontend.request_body import Allocate


class PlainSite:
    failure: str | None = None
    allocate: Allocate | None = None
    tls: Mapping[int, ServerTls] = MappingProxyType({})
    http2_ports: Mapping[int, Http2Port] = MappingProxyType({})

    def __init__(self, application: WSGIApplication, ports: list[int]) -> None:
        self.applications = dict.fromkeys(ports, application)

    def release_memory(self) -> None:
        return None

    def start(self) -> None:
        return None

    def begin_exit(self) -> None:
        return None

    def log_in_flight(self, seconds_left: float) -> None:
        return None

    def finish(self, timeout_s: float) -> bool:
        return True
