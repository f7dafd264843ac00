from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest

from tests.certificates import Authority
from tests.unit.app.worker.http2.raw_client import RecordingApplication, cut, headers_frame
from tests.unit.app.worker.socket_pairs import socket_pair
from trident.app.sites.site import Http2Port
from trident.app.worker.connection import CoarseClock
from trident.app.worker.http2 import frames
from trident.app.worker.http2.connection import Http2Connection, Http2Connections, Http2Service
from trident.app.worker.http2.frames import Http2Limits
from trident.app.worker.tls import HTTP2, ServerTls, TlsFiles, server_context
from trident.core.errors import ConfigInvalid

LARGE = 3 << 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


class TlsClient:
    """A client over a socket pair, whose wire waits on the hub."""

    def __init__(self, service: Http2Service, context: ssl.SSLContext) -> None:
        ours, self.wire = socket_pair()
        self.connection = Http2Connection(ours, "", service)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")

    def close(self) -> None:
        self.connection.close()
        self.wire.close()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        while True:
            try:
                return function(*arguments)
            except ssl.SSLWantReadError:
                self._send()
                received = self.wire.recv(65536)
                if not received:
                    self._in.write_eof()
                self._in.write(received)
            finally:
                self._send()

    def _send(self) -> None:
        if self._out.pending:
            self.wire.sendall(self._out.read())

    def shake_hands(self) -> str | None:
        self._call(self._tls.do_handshake)
        return self._tls.selected_alpn_protocol()

    def send(self, *parts: bytes) -> None:
        whole = memoryview(b"".join(parts))
        while whole:
            whole = whole[self._call(self._tls.write, whole) :]

    def receive(self) -> bytes:
        received: bytes = self._call(self._tls.read, 1 << 20)
        return received


def client_context(authority: Authority, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.root))
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def tls_of(authority: Authority, root: str = "") -> ServerTls:
    certificate, key = map(str, authority.sign("server"))
    return ServerTls(TlsFiles(certificate, key, root), HTTP2)


def service(tls: ServerTls, application: RecordingApplication | None = None) -> Http2Service:
    port = Http2Port(application=application or RecordingApplication(), limits=Http2Limits(), tls=tls)
    return Http2Service(port, Http2Connections(CoarseClock(), 10))


def test_large_messages_pass_in_both_directions(authority: Authority) -> None:
    made = service(tls_of(authority))
    client = TlsClient(made, client_context(authority, "grpc-exp", "h2"))
    assert client.shake_hands() == "h2"
    content = bytes(range(256)) * (LARGE // 256)
    client.send(frames.PREFACE, frames.settings({frames.INITIAL_WINDOW_SIZE: LARGE}), frames.window_update(0, LARGE))
    client.send(headers_frame(1), frames.frame(frames.DATA, frames.END_STREAM, 1, content))
    received = b""
    with gevent.Timeout(10):
        while len(received) < LARGE or not cut(received)[0][-1].flags & frames.END_STREAM:
            received += client.receive()
    assert b"".join(frame.content for frame in cut(received)[0] if frame.kind == frames.DATA) == content
    client.close()


@pytest.mark.parametrize("protocols", [(), ("http/1.1",)])
def test_a_client_that_does_not_choose_h2_is_disconnected(authority: Authority, protocols: tuple[str, ...]) -> None:
    made = service(tls_of(authority))
    client = TlsClient(made, client_context(authority, *protocols))
    client.shake_hands()
    assert client.receive() == b""
    assert not made.connections.open
    client.close()


def test_a_handshake_that_takes_too_long_ends(authority: Authority) -> None:
    made = service(tls_of(authority))
    client = TlsClient(made, client_context(authority, "h2"))
    made.clock.now += 15.0
    made.connections.sweep()
    assert client.connection in made.connections.open
    made.clock.now += 10.0
    made.connections.sweep()
    assert not made.connections.open
    assert client.wire.recv(1) == b""
    client.close()


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    certificate, key = map(str, authority.sign("server"))
    other = str(authority.sign("other")[1])
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for files, reason in (
        (("/none", key), "No such file or directory"),
        ((str(text), key), "it is not in PEM"),
        ((certificate, other), "key values mismatch"),
    ):
        with pytest.raises(ConfigInvalid, match=reason) as refusal:
            server_context(TlsFiles(*files), HTTP2)
        assert files[0] in str(refusal.value)
    with pytest.raises(ConfigInvalid, match="the root certificates '/none' cannot be used"):
        server_context(TlsFiles(certificate, key, "/none"), HTTP2)


def test_a_certificate_is_read_again_and_a_broken_one_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trident.server")
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    tls = ServerTls(TlsFiles(str(certificate), str(key)), HTTP2)
    assert tls.paths == (str(certificate), str(key))
    first = tls.context
    authority.sign("server")
    tls.read_again()
    second = tls.context
    assert second is not first
    key.write_text("half a k")
    tls.read_again()
    assert tls.context is second
    texts = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
    assert texts[1].endswith("it is not in PEM; the certificate from before stays in use")
