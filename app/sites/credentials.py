"""What a server shows to its clients, certificates, and what it asks of them, tokens: all of them from files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trident.app.process.files import FileContent, WatchedFiles
from trident.app.settings.reading import tls_files
from trident.app.settings.server import ServerSettings
from trident.core.frontend.access import AuthTokens, Scope

if TYPE_CHECKING:
    from trident.app.worker.tls import ServerTls


class Credentials:
    """Made in the main process, so that a process that is restarted has valid ones, whatever the files are then.

    `watch` reads changed files again, in the process that calls it. `tokens` are None without a token file, the others
    without TLS. Raises ConfigInvalid.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.tokens = _tokens(settings)
        self.http_tls = _tls(settings, "http") if settings.allow_http else None
        self.grpc_tls = _tls(settings, "grpc") if settings.allow_grpc else None
        made: tuple[FileContent | None, ...] = (self.tokens, self.http_tls, self.grpc_tls)
        self._files = WatchedFiles([each for each in made if each is not None])

    def watch(self) -> None:
        self._files.start()

    def close(self) -> None:
        self._files.close()


def _tokens(settings: ServerSettings) -> AuthTokens | None:
    if not settings.auth_token_file:
        return None
    return AuthTokens(settings.auth_token_file, Scope(settings.auth_token_scope))


def _tls(settings: ServerSettings, port: str) -> ServerTls | None:
    files = tls_files(settings, port)
    if files is None:
        return None
    from trident.app.worker.tls import HTTP1, HTTP2, ServerTls

    return ServerTls(files, HTTP1 if port == "http" else HTTP2)


def http_tls(settings: ServerSettings, credentials: Credentials) -> dict[int, ServerTls]:
    """The TLS of the HTTP port under its number. The ports of platforms and metrics have none."""
    return {settings.http_port: credentials.http_tls} if credentials.http_tls is not None else {}
