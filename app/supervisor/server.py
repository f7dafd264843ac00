"""The server process: opens the ports and runs gunicorn until the server is stopped.

Source: docs/spec/server-options.md sections 4 to 6.
"""

from __future__ import annotations

from trident.app.process.files import raise_file_limit
from trident.app.supervisor.application import TridentApplication
from trident.app.supervisor.configuration import ServerConfiguration
from trident.app.worker.listening_sockets import BindFailed, open_listeners
from trident.core.observability.log import log_failure


def serve(configuration: ServerConfiguration) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status of the process.

    0 if all requests in flight were answered; 1 if the exit timeout ended first, a port is taken, or the site failed.
    The last line of the log is then the reason.
    Call it on the main thread, before any other thread exists.
    """
    places = raise_file_limit()
    try:
        listeners = open_listeners(configuration.addresses)
    except BindFailed as error:
        log_failure(f"{error.code.value} - {error.message}", error.hint)
        for engine in configuration.engines:
            engine.stop(0)
        return 1
    try:
        TridentApplication(configuration, listeners, places).run()
    except SystemExit as ending:
        if reason := configuration.failure_note.read():
            log_failure(reason)
        return 0 if not ending.code else 1
    return 0
