"""One WSGI callable for several ports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


class PortDispatcher:
    """Chooses the application by `SERVER_PORT`.

    The worker of this project calls `application_for` once per listener instead.
    """

    def __init__(self, applications: Mapping[int, WSGIApplication]) -> None:
        self._applications = {str(port): application for port, application in applications.items()}

    def application_for(self, port: int) -> WSGIApplication:
        """The application of a port. Raises LookupError for an unknown port."""
        return self._applications[str(port)]

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._applications[environ["SERVER_PORT"]](environ, start_response)
