"""What the connections of one listener share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from wsgiref.types import WSGIApplication

import gevent
from gunicorn.http.wsgi import base_environ

from app.sites.site import Allocate
from app.worker.http1.request_head import RequestHeadParser
from app.worker.http1.response_head import ResponseHeads
from app.worker.http1.send_batching import SendBatching
from core.http.reply import BODY_KEY, CLIENT_GONE_KEY

if TYPE_CHECKING:
    from app.worker.http1.connections import Connections

# Every request sets these: the template has them already, so that a copy of it does not grow.
_PLACES: dict[str, Any] = dict.fromkeys(("REMOTE_ADDR", "REMOTE_PORT", "wsgi.input", BODY_KEY, CLIENT_GONE_KEY))


class Service:
    """One application on one listening address. Hub thread only.

    `binary_offset(environ)` is the application's guess where in the body the tensors begin, before there is a body:
    bytes, 0 if it does not know. The body is received so that they lie on a multiple of 64.
    """

    def __init__(
        self,
        application: WSGIApplication,
        address: Any,
        cfg: Any,
        connections: Connections,
        allocate: Allocate | None = None,
    ) -> None:
        """`allocate` gives memory for large bodies where there is any that is better than the heap."""
        self.application = application
        self.address = address
        self.cfg = cfg
        self.connections = connections
        self.response_heads = ResponseHeads()
        self.send_turns = SendBatching(gevent.get_hub())
        self.logs_access = bool(cfg.accesslog)
        self.clock = connections.clock
        self.limits = connections.limits
        self.allocate = allocate
        self.binary_offset: Callable[[dict[str, Any]], int] = getattr(application, "binary_offset", _unknown)
        limits = {
            "limit_request_line": cfg.limit_request_line or 8190,
            "limit_request_fields": cfg.limit_request_fields,
            "limit_request_field_size": cfg.limit_request_field_size or 8190,
        }
        scheme_keys = frozenset(f"HTTP_{name.replace('-', '_')}" for name in cfg.secure_scheme_headers)
        self.heads = RequestHeadParser(self._base_environ(), limits, scheme_keys, connections.limits.max_body_size)

    def _base_environ(self) -> dict[str, Any]:
        name, port = self.address[:2] if isinstance(self.address, tuple) else (str(self.address), "")
        return {
            **base_environ(self.cfg),
            **_PLACES,
            "SCRIPT_NAME": "",
            "SERVER_NAME": name,
            "SERVER_PORT": str(port),
            "wsgi.multithread": True,
            "wsgi.url_scheme": "http",
        }


def _unknown(environ: dict[str, Any]) -> int:
    return 0
