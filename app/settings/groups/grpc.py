"""The settings of the gRPC port.

Source: docs/spec/server-options.md section 2 "gRPC", docs/spec/grpc.md section 6.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.option import option, repeated
from app.settings.option_types import ADDRESS, BOOLEAN, FILE, INTEGER, PORT, TEXT, BadValue, Kind, integer

COMPRESSION_LEVELS = ("none", "low", "medium", "high")
_SECTION = "gRPC"
_MIN_THREADS = 2
_MAX_THREADS = 128


def _threads(text: str) -> int:
    count = INTEGER.parse(text)
    if not _MIN_THREADS <= count <= _MAX_THREADS:
        raise BadValue("invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.")
    return count


def _compression(text: str) -> str:
    folded = text.lower()
    if folded not in COMPRESSION_LEVELS:
        raise BadValue(
            f"invalid argument for --grpc_infer_response_compression_level: '{text}' is not one of "
            f"{', '.join(COMPRESSION_LEVELS)}"
        )
    return folded


@dataclass(frozen=True, kw_only=True, repr=False)
class GrpcSettings:
    """Part of ServerSettings. Times are in milliseconds, as tritonserver's."""

    allow_grpc: bool = option(True, "allow-grpc", BOOLEAN, "Whether the gRPC port is opened.", section=_SECTION)
    grpc_address: str = option(
        "0.0.0.0",
        "grpc-address",
        ADDRESS,
        "Address of the gRPC port; unix:<path> is a Unix socket, without a port.",
        section=_SECTION,
    )
    grpc_port: int = option(8001, "grpc-port", PORT, "The gRPC port.", section=_SECTION)
    reuse_grpc_port: bool = option(
        False, "reuse-grpc-port", BOOLEAN, "Whether other servers may listen on the same port.", section=_SECTION
    )
    grpc_header_forward_pattern: str = option(
        "",
        "grpc-header-forward-pattern",
        TEXT,
        "Regular expression in RE2's syntax, ignoring case, for the names of metadata that is forwarded as parameters "
        "of the request.",
        section=_SECTION,
    )
    grpc_restricted_protocol: tuple[str, ...] = repeated(
        "grpc-restricted-protocol",
        TEXT,
        "Groups of calls, and the metadata that a call of them must have: <group>[,<group>...]:<key>=<value>, sent as "
        "triton-grpc-protocol-<key>.",
        section=_SECTION,
        secret=True,
    )
    grpc_reflection: bool = option(
        True,
        "grpc-reflection",
        BOOLEAN,
        "Whether clients such as grpcurl may ask for the services and their messages.",
        section=_SECTION,
        own=True,
    )
    grpc_max_message_size: int = option(
        2147483647,
        "grpc-max-message-size",
        integer(1, 2147483647),
        "Largest message that is received, in bytes, also after decompression.",
        section=_SECTION,
        own=True,
    )
    grpc_max_unfinished_size: int = option(
        536870912,
        "grpc-max-unfinished-size",
        integer(1, 2**40),
        "Bytes that the messages which are being received may have together, in each process and besides the largest "
        "of them. If they have more, silent clients and then the largest messages are refused.",
        section=_SECTION,
        own=True,
    )
    grpc_infer_thread_count: int = option(
        2,
        "grpc-infer-thread-count",
        Kind("integer", _threads),
        "Threads for work that would delay all other calls: compression and decompression of large messages, "
        "repository control. Requests need none.",
        section=_SECTION,
    )
    grpc_infer_response_compression_level: str = option(
        "none",
        "grpc-infer-response-compression-level",
        Kind("|".join(COMPRESSION_LEVELS), _compression, COMPRESSION_LEVELS),
        "Compression of the responses to inference calls, for clients that accept it.",
        section=_SECTION,
    )
    grpc_use_ssl: bool = option(
        False,
        "grpc-use-ssl",
        BOOLEAN,
        "Whether clients must use TLS, which needs a certificate and a key.",
        section=_SECTION,
    )
    grpc_use_ssl_mutual: bool = option(
        False,
        "grpc-use-ssl-mutual",
        BOOLEAN,
        "Whether clients must use TLS and have a certificate that one of the root certificates has signed.",
        section=_SECTION,
    )
    grpc_server_cert: str = option(
        "",
        "grpc-server-cert",
        FILE,
        "File with the server's certificate in PEM, followed by those of its issuers; a change of it is noticed.",
        section=_SECTION,
    )
    grpc_server_key: str = option(
        "", "grpc-server-key", FILE, "File with the certificate's key in PEM, without a password.", section=_SECTION
    )
    grpc_root_cert: str = option(
        "", "grpc-root-cert", FILE, "File with the root certificates of the clients in PEM.", section=_SECTION
    )
    grpc_keepalive_time: int = option(
        7200000,
        "grpc-keepalive-time",
        integer(1),
        "Milliseconds of silence after which a client with a call is asked for a sign of life.",
        section=_SECTION,
    )
    grpc_keepalive_timeout: int = option(
        20000,
        "grpc-keepalive-timeout",
        integer(1),
        "Milliseconds that it has to answer before its connection is closed.",
        section=_SECTION,
    )
    grpc_keepalive_permit_without_calls: bool = option(
        False,
        "grpc-keepalive-permit-without-calls",
        BOOLEAN,
        "Whether both sides may ask for signs of life while there is no call.",
        section=_SECTION,
    )
    grpc_http2_max_ping_strikes: int = option(
        2,
        "grpc-http2-max-ping-strikes",
        integer(0),
        "Pings of a client that may come too early before its connection is closed; 0: any number.",
        section=_SECTION,
    )
    grpc_http2_min_recv_ping_interval_without_data: int = option(
        300000,
        "grpc-http2-min-recv-ping-interval-without-data",
        integer(0),
        "Milliseconds between the pings of a client to which nothing is sent meanwhile.",
        section=_SECTION,
    )
    grpc_max_connection_age: int = option(
        0,
        "grpc-max-connection-age",
        integer(0),
        "Milliseconds, give or take a tenth, after which a connection takes no more calls, so that clients spread "
        "anew; 0: never.",
        section=_SECTION,
    )
    grpc_max_connection_age_grace: int = option(
        0,
        "grpc-max-connection-age-grace",
        integer(0),
        "Milliseconds that the calls of such a connection then have; 0: as long as they take.",
        section=_SECTION,
    )
