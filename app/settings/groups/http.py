"""The settings of the HTTP port and of the processes that serve it.

Source: docs/spec/server-options.md section 2 "HTTP".
"""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.option import option, repeated
from app.settings.option_types import (
    ADDRESS,
    BOOLEAN,
    FILE,
    INT64_MAX,
    INTEGER64,
    PORT,
    TEXT,
    Kind,
    choice,
    integer,
    number,
)

_SECTION = "HTTP"
_MAX_WORKERS = 256
_MIN_WORKER_MEMORY = 1 << 20


def _workers(text: str) -> str:
    return "auto" if text.lower() == "auto" else str(integer(0, _MAX_WORKERS).parse(text))


@dataclass(frozen=True, kw_only=True, repr=False)
class HttpSettings:
    """Part of ServerSettings."""

    allow_http: bool = option(True, "allow-http", BOOLEAN, "Whether the HTTP port is opened.", section=_SECTION)
    http_address: str = option("0.0.0.0", "http-address", ADDRESS, "Address of the HTTP port.", section=_SECTION)
    http_port: int = option(8000, "http-port", PORT, "The HTTP port.", section=_SECTION)
    reuse_http_port: bool = option(
        False, "reuse-http-port", BOOLEAN, "Whether other servers may listen on the same port.", section=_SECTION
    )
    http_thread_count: int = option(
        8,
        "http-thread-count",
        integer(1),
        "Threads for work that would delay all other requests: compression and decompression of large bodies, "
        "repository control.",
        section=_SECTION,
    )
    http_max_input_size: int = option(
        67108864,
        "http-max-input-size",
        INTEGER64,
        "Maximum size of a request body in bytes, as sent and when decompressed.",
        section=_SECTION,
    )
    health_body: str = option(
        "empty",
        "health-body",
        choice("health-body", "empty", "json"),
        'Body of a 200 of the health routes: empty, as in Triton, or JSON such as {"ready":true}, which clients of '
        "KServe read.",
        section=_SECTION,
        own=True,
    )
    http_header_forward_pattern: str = option(
        "",
        "http-header-forward-pattern",
        TEXT,
        "Regular expression in RE2's syntax, ignoring case, for the names of headers that are forwarded as parameters "
        "of the request.",
        section=_SECTION,
    )
    http_restricted_api: tuple[str, ...] = repeated(
        "http-restricted-api",
        TEXT,
        "Groups of routes, and the header that a request to them must have: <group>[,<group>...]:<header>=<value>.",
        section=_SECTION,
        secret=True,
    )
    http_use_ssl: bool = option(
        False,
        "http-use-ssl",
        BOOLEAN,
        "Whether clients of the HTTP port must use TLS, which needs a certificate and a key.",
        section=_SECTION,
        own=True,
    )
    http_use_ssl_mutual: bool = option(
        False,
        "http-use-ssl-mutual",
        BOOLEAN,
        "Whether they must use TLS and have a certificate that one of the root certificates has signed.",
        section=_SECTION,
        own=True,
    )
    http_server_cert: str = option(
        "",
        "http-server-cert",
        FILE,
        "File with the server's certificate in PEM, followed by those of its issuers; a change of it is noticed.",
        section=_SECTION,
        own=True,
    )
    http_server_key: str = option(
        "",
        "http-server-key",
        FILE,
        "File with the certificate's key in PEM, without a password.",
        section=_SECTION,
        own=True,
    )
    http_root_cert: str = option(
        "",
        "http-root-cert",
        FILE,
        "File with the root certificates of the clients in PEM.",
        section=_SECTION,
        own=True,
    )
    http_request_timeout_secs: float = option(
        60.0,
        "http-request-timeout-secs",
        number(0.001),
        "Seconds without a byte after which a client that is sending a request or reading a response is disconnected.",
        section=_SECTION,
        own=True,
    )
    http_keepalive_secs: float = option(
        600.0,
        "http-keepalive-secs",
        number(0),
        "Seconds after which an idle connection is closed.",
        section=_SECTION,
        own=True,
    )
    http_workers: str = option(
        "auto",
        "http-workers",
        Kind("<number>|auto", _workers, ("auto",)),
        "Number of HTTP processes in front of the engine process; 0: one process does both; auto: chosen by the "
        "number of cores.",
        section=_SECTION,
        own=True,
    )
    http_worker_memory_bytes: int = option(
        256 << 20,
        "http-worker-memory-bytes",
        integer(_MIN_WORKER_MEMORY, INT64_MAX),
        "Memory in bytes that each HTTP worker shares with the engine for large tensors: half of it for requests, "
        "half for responses. Only the used part is allocated.",
        section=_SECTION,
        own=True,
    )
