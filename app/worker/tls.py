"""TLS on the worker's sockets: the server's certificate, and the socket of one client.

Source: docs/spec/grpc.md section 6; RFC 9113 section 9.2; RFC 7301 (ALPN).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Sequence
from typing import NamedTuple

from trident.core.errors import ConfigInvalid
from trident.core.inference.tensors import Buffer, drop_sent, size_of

HTTP1 = "http/1.1"
HTTP2 = "h2"
# One call of OpenSSL writes one record of at most 16 KiB: to join more would copy bytes again and again.
_RECORD = 16384
# How much one call may receive or send before other connections get their turn.
_MOST = 16 * _RECORD
# OpenSSL's reason for a client that begins with a request of HTTP.
_PLAIN_HTTP = "HTTP_REQUEST"

log = logging.getLogger("trident.server")


class TlsFiles(NamedTuple):
    """Paths of files in PEM. With a `root` every client must have a certificate that one in it has signed."""

    certificate: str
    key: str
    root: str = ""


class ServerTls:
    """The TLS of one port. `context` is for the next client, made of the files; `protocol` is what ALPN offers.

    Raises ConfigInvalid.
    """

    def __init__(self, files: TlsFiles, protocol: str) -> None:
        self.paths = tuple(path for path in files if path)
        self._files = files
        self._protocol = protocol
        self.context = server_context(files, protocol)

    def read_again(self) -> None:
        """Show clients from now on the certificate that is in the files now. If it cannot be used, the one from before
        stays. Any thread."""
        try:
            self.context = server_context(self._files, self._protocol)
        except ConfigInvalid as error:
            log.error("%s; the certificate from before stays in use", error.message)
        else:
            log.info("the certificate '%s' was read again", self._files.certificate)


def server_context(files: TlsFiles, protocol: str) -> ssl.SSLContext:
    """The context of a port that speaks `protocol`. Raises ConfigInvalid."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([protocol])
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigInvalid(
            f"the certificate '{files.certificate}' with the key '{files.key}' cannot be used: {_reason(error)}",
            hint="both are files in PEM; the key has no password and belongs to the first certificate",
        ) from error
    if files.root:
        try:
            context.load_verify_locations(files.root)
        except (OSError, ValueError) as error:
            raise ConfigInvalid(
                f"the root certificates '{files.root}' cannot be used: {_reason(error)}", hint="it is a file in PEM"
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


def is_plain_http(error: OSError) -> bool:
    """True if a handshake failed with `error` because the client speaks plain HTTP."""
    return isinstance(error, ssl.SSLError) and error.reason == _PLAIN_HTTP


class TlsSocket:
    """The part of a socket that a connection uses, with TLS between it and the wire. Does not block.

    The methods raise BlockingIOError where the wire has no bytes or no room, and OSError, which SSLError is, at the
    end.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        """Takes over `sock`. Raises OSError if the client has gone."""
        self._sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._peeked = b""
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
        self.is_open = True

    @property
    def protocol(self) -> str | None:
        return self._sock.selected_alpn_protocol()

    def recv(self, size: int, flags: int = 0) -> bytes:
        """`flags` may be MSG_PEEK, for the first byte: it stays, for the next call. Then the end of the connection is
        also seen if the client has said it by TLS, of which the socket below would tell only that bytes wait."""
        first = self._peeked
        if first and (flags or not self._sock.pending()):
            self._peeked = first if flags else b""
            return first
        try:
            received = self._sock.recv(size - len(first))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        self._peeked = received if flags else b""
        return first + received

    def recv_into(self, memory: memoryview) -> int:
        """Receive one record after the other while the wire has them."""
        got = len(self._peeked)
        memory[:got] = self._peeked
        self._peeked = b""
        end = min(len(memory), _MOST)
        while got < end:
            try:
                size = self._sock.recv_into(memory[got:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not got:
                    raise BlockingIOError from None
                break
            if not size:
                break
            got += size
        return got

    def pending(self) -> int:
        """Bytes that were received and decrypted, of which the wire will not tell again."""
        return self._sock.pending() + len(self._peeked)

    def send(self, content: Buffer) -> int:
        """Send the beginning of `content`; returns its size. After BlockingIOError the next call must begin with the
        same bytes, as OpenSSL demands."""
        try:
            return self._sock.send(content)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, parts: Sequence[Buffer]) -> int:
        """As `send`, for the beginning of `parts`: one record after the other while the wire takes them."""
        left, end = list(parts), min(sum(map(size_of, parts)), _MOST)
        sent = 0
        while True:
            try:
                size = self.send(_first_record(left))
            except BlockingIOError:
                if not sent:
                    raise
                return sent
            sent += size
            if sent >= end:
                return sent
            drop_sent(left, size)

    def plain(self) -> socket.socket:
        """The socket below, for a client that does not speak TLS. From then on this object has none."""
        return socket.socket(fileno=self._sock.detach())

    def shutdown(self, how: int) -> None:
        self._say_end()
        self._sock.shutdown(how)

    def close(self) -> None:
        self._say_end()
        self._sock.close()

    def _say_end(self) -> None:
        """Tell the client that no byte is missing (close_notify), if the wire takes that."""
        with contextlib.suppress(OSError, ValueError):
            self._sock.unwrap()


def _first_record(parts: Sequence[Buffer]) -> Buffer:
    """The beginning of `parts` in one buffer: a record of them, or the first part if that is one or more."""
    first = parts[0]
    if len(parts) == 1 or size_of(first) >= _RECORD:
        return first
    joined, size = [], 0
    for part in parts:
        joined.append(part)
        size += size_of(part)
        if size >= _RECORD:
            break
    return b"".join(joined)
