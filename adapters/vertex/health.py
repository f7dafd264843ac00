"""The platform's health probe: 10 seconds for an answer, and only exactly 200 is healthy; so it hardly does anything.

Source: docs/spec/vertex.md sections A2 and B3 (Triton's 400 is a 503 here, and says why).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.http.reply import TEXT, Environ, Reply, empty_reply, json_reply
from core.http.views.health import readiness

if TYPE_CHECKING:
    from adapters.vertex.application import VertexApplication

_NOT_YET = 503
_CONTROL = "model-repository"


def health(application: VertexApplication, environ: Environ) -> Reply:
    """200 when the server is ready and serves the default model, or any where none was named; else 503 with how far it
    is. A server whose repository clients may change through this port is healthy without a model."""
    engine, default = application.engine, application.default_model
    if not engine.is_ready():
        return json_reply(readiness(engine.phase()), _NOT_YET)
    if default.is_ready() or (not default.configured and _CONTROL in application.settings.public_groups):
        return empty_reply(TEXT)
    missing = f"the default model '{default.configured}' is not loaded" if default.configured else "no model is loaded"
    return json_reply({**readiness(engine.phase()), "error": missing}, _NOT_YET)
