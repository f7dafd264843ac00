"""gunicorn's log, as part of the server's own."""

from __future__ import annotations

import logging
from typing import Any

from gunicorn.glogging import Logger


class GunicornLog(Logger):  # type: ignore[misc]
    """Everything gunicorn says goes to the standard logger `trident.gunicorn`; its access log goes nowhere."""

    def setup(self, cfg: Any) -> None:
        self.error_log = logging.getLogger("trident.gunicorn")

    def access(self, resp: Any, req: Any, environ: Any, request_time: Any) -> None:
        return None
