"""What the connections through one listener share, in any protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from wsgiref.types import WSGIApplication

import gevent
from gunicorn.http.wsgi import base_environ

from trident.app.worker.connection import Connections
from trident.app.worker.io import SendBatching
from trident.app.worker.tls import ServerTls
from trident.core.frontend.body import Allocate
from trident.core.frontend.trace_events import Span
from trident.core.http.reply import ARRIVED_KEY, BODY_KEY, CLIENT_GONE_KEY
from trident.core.observability.tracing.trace_gate import TraceGate

_SHUT = TraceGate()
# Every request sets these. The template already has them, so that a copy of it does not grow.
_REQUEST_KEYS: dict[str, Any] = dict.fromkeys(
    ("REMOTE_ADDR", "REMOTE_PORT", "wsgi.input", BODY_KEY, CLIENT_GONE_KEY, ARRIVED_KEY)
)


class ListenerService:
    """One application on one listening address. Hub thread only.

    `binary_offset(environ)` is the application's estimate, before the body is received, of the offset in bytes at which
    the tensors begin in it; 0 if unknown. The body is received so that they lie at a multiple of 64.
    While `trace_gate` is open, the times at which requests arrive are noted in their environ; `end_traces(environ,
    sent)` is called when the response to one that was traced has left.
    """

    def __init__(
        self,
        application: WSGIApplication,
        address: Any,
        cfg: Any,
        connections: Connections,
        allocate: Allocate | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """`allocate` allocates large bodies in memory that is shared with the engine; None without such memory.
        `tls`: None for plain text."""
        self.application = application
        self.address = address
        self.cfg = cfg
        self.connections = connections
        self.send_batching = SendBatching(gevent.get_hub())
        self.tls = tls
        self.scheme = "http" if tls is None else "https"
        self.clock = connections.clock
        self.limits = connections.limits
        self.allocate = allocate
        self.binary_offset: Callable[[dict[str, Any]], int] = getattr(application, "binary_offset", _unknown)
        self.trace_gate: TraceGate = getattr(application, "trace_gate", _SHUT)
        self.end_traces: Callable[[dict[str, Any], Span], None] = getattr(application, "end_traces", _nothing)

    def base_environ(self) -> dict[str, Any]:
        """The part of the WSGI environment that all requests have in common."""
        name, port = self.address[:2] if isinstance(self.address, tuple) else (str(self.address), "")
        return {
            **base_environ(self.cfg),
            **_REQUEST_KEYS,
            "SCRIPT_NAME": "",
            "SERVER_NAME": name,
            "SERVER_PORT": str(port),
            "wsgi.multithread": True,
            "wsgi.url_scheme": self.scheme,
        }


def _nothing(environ: dict[str, Any], sent: Span) -> None:
    """The application traces nothing."""


def _unknown(environ: dict[str, Any]) -> int:
    return 0
