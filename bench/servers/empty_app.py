"""An application that does nothing: it shows the cost of a request in our worker alone."""

from __future__ import annotations

from wsgiref.types import StartResponse, WSGIEnvironment


def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "0"), ("Content-Type", "text/plain")])
    return []
