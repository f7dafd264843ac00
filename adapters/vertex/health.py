"""The platform's health probe: 10 seconds for an answer, and only exactly 200 is healthy; so it only looks at flags.

Source: spec/vertex.md sections (a) A2 and (b) B3 (Triton's 400 is a 503 here, and says why).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.http.health import readiness
from core.http.reply import TEXT, Environ, Reply, empty_reply, json_reply

if TYPE_CHECKING:
    from adapters.vertex.application import VertexApplication

_NOT_YET = 503


def health(application: VertexApplication, environ: Environ) -> Reply:
    """200 when the server is ready and, where one was named, the default model; else 503 with how far it is."""
    engine = application.engine
    if not engine.is_ready():
        return json_reply(readiness(engine.phase()), _NOT_YET)
    if not application.default_model.is_ready():
        missing = f"the default model '{application.settings.default_model}' is not loaded"
        return json_reply({**readiness(engine.phase()), "error": missing}, _NOT_YET)
    return empty_reply(TEXT)
