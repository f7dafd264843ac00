"""TLS on the worker's sockets: the server's certificate, and the socket of one client.

Source: docs/spec/grpc.md section 6; RFC 9113 section 9.2; RFC 7301 (ALPN).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

from app.worker.response_parts import size_of
from core.errors import ConfigInvalid
from core.inference.tensors import Buffer

ALPN = "h2"
# One call of OpenSSL writes one record of at most 16 KiB: to join more would copy bytes again and again.
_RECORD = 16384


def server_context(certificate: str, key: str, root: str = "", *, mutual: bool = False) -> ssl.SSLContext:
    """The context of a port, from files in PEM. With `mutual` every client must have a certificate that one in `root`
    has signed. Raises ConfigInvalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([ALPN])
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigInvalid(
            f"the certificate '{certificate}' with the key '{key}' cannot be used: {_reason(error)}",
            hint="both are files in PEM; the key has no password and belongs to the first certificate",
        ) from error
    if mutual:
        try:
            context.load_verify_locations(root)
        except (OSError, ValueError) as error:
            raise ConfigInvalid(
                f"the root certificates '{root}' cannot be used: {_reason(error)}", hint="it is a file in PEM"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    """OpenSSL would otherwise ask the terminal for one."""
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "it is not in PEM"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


class TlsSocket:
    """The part of a socket that a connection uses, with TLS between it and the wire. Does not block.

    The methods raise BlockingIOError where the wire has no bytes or no room, and OSError, which SSLError is, at the
    end.
    """

    __slots__ = ("_sock", "is_open", "wants_to_write")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        """Takes over `sock`. Raises OSError if the client has gone."""
        self._sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self.is_open = False
        self.wants_to_write = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def shake_hands(self) -> None:
        """Continue the handshake; `is_open` when it is complete. `wants_to_write` if the wire must take bytes first."""
        self.wants_to_write = False
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLWantWriteError:
            self.wants_to_write = True
            return
        if self._sock.selected_alpn_protocol() != ALPN:
            raise ssl.SSLError("the client did not choose h2 by ALPN")
        self.is_open = True

    def recv(self, size: int) -> bytes:
        try:
            return self._sock.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, memory: memoryview) -> int:
        try:
            return self._sock.recv_into(memory)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def pending(self) -> int:
        """Bytes that were received and decrypted, of which the wire will not tell again."""
        return self._sock.pending()

    def send(self, content: Buffer) -> int:
        """Send the beginning of `content`; returns its size. After BlockingIOError the next call must begin with the
        same bytes, as OpenSSL demands."""
        try:
            return self._sock.send(content)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, parts: Sequence[Buffer]) -> int:
        """As `send`, for the beginning of `parts`: a record of them."""
        first = parts[0]
        if len(parts) == 1 or size_of(first) >= _RECORD:
            return self.send(first)
        joined, size = [], 0
        for part in parts:
            joined.append(part)
            size += size_of(part)
            if size >= _RECORD:
                break
        return self.send(b"".join(joined))

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()
