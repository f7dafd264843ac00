"""A platform's API on a port of this machine: a Flask application on werkzeug's server, with a thread for each call.

Signatures are not checked. Only this machine can connect.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Self

from flask import Flask, Response
from werkzeug.serving import WSGIRequestHandler, make_server

from trident.app.emulators.container import HOST
from trident.core.errors import ConfigInvalid

# The server notices within this time that it must end.
_POLL_S = 0.05


class ApiServer:
    """Serves the routes that a subclass adds to `application` on `port`, 0 for any free one.

    The port is bound from construction until `close`. A context manager for one use: it accepts callers inside.
    """

    def __init__(self, port: int, name: str) -> None:
        """Raises ConfigInvalid for a port that is in use or that needs privileges."""
        self._lock = threading.Lock()
        self._calls = 0
        self.application = Flask(__name__, static_folder=None)
        self.application.url_map.merge_slashes = False
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((HOST, port))
            except OSError as error:
                raise _cannot_listen(port, error) from error
            self._server = make_server(
                HOST, port, self.application, threaded=True, request_handler=_Quiet, fd=bound.fileno()
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=[_POLL_S], name=name, daemon=True)

    def route(self, method: str, rule: str, view: Callable[..., Any]) -> None:
        """Add the route for a method, "" for any."""
        methods = [method] if method else ["GET", "POST", "PUT", "PATCH", "DELETE"]
        self.application.add_url_rule(rule, f"{method} {rule}", view, methods=methods, provide_automatic_options=False)

    @property
    def address(self) -> str:
        return f"{HOST}:{self._server.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def calls(self) -> int:
        with self._lock:
            return self._calls

    def count(self) -> None:
        with self._lock:
            self._calls += 1

    def __enter__(self) -> Self:
        try:
            self._server.server_activate()
        except OSError as error:
            raise _cannot_listen(self._server.port, error) from error
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Release the port. A second call does nothing."""
        self._server.server_close()


def _cannot_listen(port: int, error: OSError) -> ConfigInvalid:
    return ConfigInvalid(
        f"cannot listen at {HOST}:{port}: {error.strerror}",
        hint="name another port with --port, or none, which finds a free one",
    )


class _Quiet(WSGIRequestHandler):
    timeout = 120

    def log(self, type: str, message: str, *args: Any) -> None:
        """Log nothing: calls are counted, and the container has its own log."""


class Reply(Response):
    """Has no Content-Type unless one is given."""

    default_mimetype = None

    @classmethod
    def of_parts(cls, parts: Iterable[bytes], status: int, headers: Mapping[str, str]) -> Self:
        """Its head is sent at once, and each part as it comes. If `parts` raises ConnectionError, the caller never
        receives the end of the answer."""
        return cls(chain([b""], parts), status, headers)
