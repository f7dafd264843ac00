"""What the HTTP/1 connections through one listener share."""

from __future__ import annotations

from typing import Any
from wsgiref.types import WSGIApplication

from app.worker.connections import Connections
from app.worker.http1.request_head import RequestHeadParser
from app.worker.http1.response_head import ResponseHeads
from app.worker.listener_service import ListenerService
from app.worker.tls import ServerTls
from core.frontend.request_body import Allocate


class Http1Service(ListenerService):
    """A listener's service with the parser of request heads and the response heads that it remembers."""

    def __init__(
        self,
        application: WSGIApplication,
        address: Any,
        cfg: Any,
        connections: Connections,
        allocate: Allocate | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        super().__init__(application, address, cfg, connections, allocate, tls)
        self.response_heads = ResponseHeads()
        self.heads = RequestHeadParser(
            self.base_environ(),
            self.limits.max_body_size,
            max_line=cfg.limit_request_line or 8190,
            max_fields=cfg.limit_request_fields,
            max_field=cfg.limit_request_field_size or 8190,
        )
