"""The platform's health probe. It allows 2 seconds for an answer at any time, so the view only reads flags.

Source: docs/spec/sagemaker.md sections A2 and B3 (Triton answers 400; this is a 503 that says why).
"""

from __future__ import annotations

from adapters.sagemaker.settings import PingMode
from core.http.application import V2Application
from core.http.reply import TEXT, Environ, Reply, empty_reply, json_reply
from core.http.views.health import readiness, ready_reply

_NOT_YET = 503


def ping(mode: PingMode, application: V2Application, environ: Environ) -> Reply:
    """200 when the server is ready, or only live in that mode; otherwise 503 with the progress of the start.

    The body of the 200 is empty; a header has the models whose last load failed.
    """
    engine = application.engine
    serves = engine.is_live() if mode is PingMode.LIVE else engine.is_ready()
    if not serves:
        return json_reply(readiness(engine.phase()), _NOT_YET)
    return ready_reply(application, environ) if engine.is_ready() else empty_reply(TEXT)
