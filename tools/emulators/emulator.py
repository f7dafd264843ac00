"""The common part of the emulators: run a container in a temporary folder, and serve the platform's API.

The API is a Flask application on werkzeug's server, with a thread for each call. Signatures are not checked, and only
this machine can connect.
"""

from __future__ import annotations

import socket
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TextIO, TypeVar

from flask import Flask, Response
from werkzeug.serving import WSGIRequestHandler, make_server

from trident.core.errors import ConfigInvalid
from trident.core.observability.log import print_line
from trident.tools.emulators.container import HOST, BreachReport, Interrupted, remove_folder
from trident.tools.options import CloudCache


@dataclass(frozen=True, kw_only=True)
class PlatformOptions:
    """`command` is the container's entry point, `environment` the emulator's, and `variables` are the model's.

    `api_port` 0 is any free one. `cache` is for what is fetched from the cloud.
    """

    model: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_port: int = 0
    cache: CloudCache = field(default_factory=CloudCache)


class Probes(Protocol):
    def wait_until_ready(self, is_stopped: Callable[[], bool]) -> bool: ...

    def watch(self, stopped: threading.Event) -> None: ...


Options = TypeVar("Options", bound=PlatformOptions)


class PlatformEmulator(ABC, Generic[Options]):
    """Runs once. `out` gets messages for the user, `err` each breach as it happens."""

    platform: str
    """Its name, as it stands in the names of folders."""

    def __init__(self, options: Options, out: TextIO, err: TextIO | None = None) -> None:
        self._options = options
        self._out = out
        self.report = BreachReport(err)
        self._on_ready: Callable[[str], None] | None = None

    def run(self, stopped: threading.Event, on_ready: Callable[[str], None] | None = None) -> int:
        """Run until `stopped` is set or the container ends; return the exit status, which is 1 after a failure.

        `on_ready` is called with the API's address. Raises ConfigInvalid for a model that cannot be used.
        """
        self._on_ready = on_ready
        succeeded = True
        with tempfile.TemporaryDirectory(prefix=f"trident-{self.platform}-") as folder:
            try:
                succeeded = self._run_in(Path(folder), stopped)
            except Interrupted:
                pass  # no container was started
            finally:
                for each in Path(folder).iterdir():
                    remove_folder(each)
        self._say(self.report.text().rstrip())
        return 0 if succeeded and not self.report.breaches else 1

    @abstractmethod
    def _run_in(self, folder: Path, stopped: threading.Event) -> bool:
        """Run the container, with its files below `folder`. Returns False for a failure that breaks no limit."""

    def _serve(self, api: ApiServer, probes: Probes, stopped: threading.Event, ready: str) -> bool:
        """Serve the API from the time the container is ready until `stopped`. False if it does not become ready."""
        if not probes.wait_until_ready(stopped.is_set):
            return False
        with api:
            self._say(f"{ready} is at {api.url}")
            if self._on_ready is not None:
                self._on_ready(api.url)
            probes.watch(stopped)
        return True

    def _say(self, text: str) -> None:
        print_line(text, self._out)


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
    def of_parts(cls, parts: Iterable[bytes], status: int, headers: Mapping[str, str], held: ExitStack) -> Self:
        """Its head is sent at once, and each part as it comes; then what is in `held` is closed. If `parts` raises
        ConnectionError, the caller never receives the end of the answer."""
        reply = cls(chain([b""], parts), status, headers)
        reply.call_on_close(held.pop_all().close)
        return reply
