"""Gunicorn's log as part of the server's log."""

from __future__ import annotations

import logging
from typing import Any

from gunicorn.glogging import Logger

from core.observability.logging import ask_to_reopen_log

_STOPPING = "Shutting down"


class GunicornLog(Logger):  # type: ignore[misc]
    """Sends gunicorn's messages to the logger `trident.gunicorn`, and discards its access log."""

    def setup(self, cfg: Any) -> None:
        self.error_log = logging.getLogger("trident.gunicorn")

    def reopen_files(self) -> None:
        """SIGUSR1, in the main process and in a worker, perhaps in the middle of an event."""
        ask_to_reopen_log()

    def error(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """The stop of a server is no error, whatever its exit status; the last line of the log says what was."""
        level = logging.INFO if msg.startswith(_STOPPING) else logging.ERROR
        self.error_log.log(level, msg, *args, **kwargs)

    def access(self, resp: Any, req: Any, environ: Any, request_time: Any) -> None:
        return None
