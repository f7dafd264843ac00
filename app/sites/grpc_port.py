"""The gRPC port of a site: its application, and what it asks of HTTP/2."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import gevent
from prometheus_client.registry import Collector

from app.settings.server import ServerSettings
from app.settings.services import Service
from app.sites.bridges import MakeBridge
from app.sites.credentials import Credentials
from app.sites.site import Http2Port
from app.worker.http2.limits import Http2Limits
from core.engine.protocol import Engine
from core.errors import ErrorHints
from core.frontend.auth_tokens import AuthTokens
from core.frontend.gevent_bridge import GeventBridge
from core.frontend.request_body import Allocate
from core.frontend.restricted_apis import GRPC, parse_restricted

if TYPE_CHECKING:
    from core.grpc.options import GrpcOptions


def grpc_ports(
    settings: ServerSettings,
    engine: Engine,
    make_bridge: MakeBridge,
    credentials: Credentials,
    *,
    allocate: Allocate | None = None,
    show: Callable[[Collector], None] | None = None,
) -> dict[int, Http2Port]:
    """The gRPC port, if it is opened, under its number; a Unix socket has 0. A stock worker cannot serve it.

    `allocate` gives memory for large messages that is shared with the engine. `show` gets the counts of calls, unless
    the pages of metrics show them anyway.
    """
    place = settings.services().get(Service.GRPC)
    bridge = make_bridge(settings.grpc_infer_thread_count) if place is not None else None
    if place is None or not isinstance(bridge, GeventBridge):
        return {}
    from core.grpc.application import GrpcApplication  # for servers with gRPC only

    application = GrpcApplication(engine, grpc_options(settings, credentials.tokens), bridge, gevent.spawn, allocate)
    if show is not None:
        show(application.request_metrics)
    port = Http2Port(
        application=application,
        limits=http2_limits(settings),
        tls=credentials.grpc_tls,
        max_age_s=_seconds(settings.grpc_max_connection_age),
        age_grace_s=_seconds(settings.grpc_max_connection_age_grace),
        shares_memory=allocate is not None,
    )
    return {place[1]: port}


def grpc_options(settings: ServerSettings, tokens: AuthTokens | None = None) -> GrpcOptions:
    from core.grpc.options import GrpcOptions

    return GrpcOptions(
        header_forward_pattern=settings.grpc_header_forward_pattern,
        restricted=parse_restricted(settings.grpc_restricted_protocol, GRPC),
        tokens=tokens,
        compression_level=settings.grpc_infer_response_compression_level,
        max_message_size=settings.grpc_max_message_size,
        max_unfinished_size=settings.grpc_max_unfinished_size,
        reflection=settings.grpc_reflection,
        allow_client_shm=settings.allow_client_shm,
        error_hints=ErrorHints(settings.error_hints),
    )


def http2_limits(settings: ServerSettings) -> Http2Limits:
    """gRPC's rules for pings; without the permission a ping may come once in two hours while there is no call."""
    defaults = Http2Limits()
    interval_s = settings.grpc_http2_min_recv_ping_interval_without_data / 1000
    permitted = settings.grpc_keepalive_permit_without_calls
    return Http2Limits(
        ping_interval_s=interval_s,
        ping_interval_idle_s=interval_s if permitted else defaults.ping_interval_idle_s,
        ping_strikes=settings.grpc_http2_max_ping_strikes,
        keepalive_s=settings.grpc_keepalive_time / 1000,
        keepalive_timeout_s=settings.grpc_keepalive_timeout / 1000,
        keepalive_without_streams=permitted,
    )


def _seconds(milliseconds: int) -> float:
    """0 is never."""
    return milliseconds / 1000 if milliseconds else math.inf
