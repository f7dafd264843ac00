"""The platform's probe: 2 seconds for an answer, whatever the server is doing; so it only looks at flags.

Source: docs/spec/sagemaker.md sections A2 and B3 (Triton's 400 is a 503 here, and says why).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.http.reply import TEXT, Environ, Reply, empty_reply, json_reply
from core.http.views.health import readiness

if TYPE_CHECKING:
    from adapters.sagemaker.application import SageMakerApplication

_NOT_YET = 503


def ping(application: SageMakerApplication, environ: Environ) -> Reply:
    """200 when the server is ready, or live if that is all that was asked for; else 503 with how far it is."""
    engine = application.engine
    serves = engine.is_live() if application.settings.ping_mode == "live" else engine.is_ready()
    return empty_reply(TEXT) if serves else json_reply(readiness(engine.phase()), _NOT_YET)
