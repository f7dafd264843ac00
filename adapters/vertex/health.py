"""The platform's health probe. It allows 10 seconds for an answer and takes only a 200 as healthy.

Source: docs/spec/vertex.md sections A2 and B3 (Triton answers 400; this is a 503 that says why).
"""

from __future__ import annotations

from adapters.vertex.endpoint import VertexEndpoint
from core.http.access_note import PROBE_KEY
from core.http.application import V2Application
from core.http.reply import Environ, Reply, json_reply
from core.http.views.health import readiness, ready_reply

_NOT_YET = 503
_CONTROL = "model-repository"


def health(endpoint: VertexEndpoint, application: V2Application, environ: Environ) -> Reply:
    """200 when the server is ready and the default model serves, or any model if none was named; otherwise 503.

    The 503 gives the progress of the start, a header of the 200 the models whose last load failed. Without a model the
    server is healthy if clients may load one through this port.
    """
    environ[PROBE_KEY] = True
    engine, default = application.engine, endpoint.default_model
    if not engine.is_ready():
        return json_reply(readiness(engine.phase()), _NOT_YET)
    if default.is_ready() or (not default.configured and _CONTROL in endpoint.settings.public_groups):
        return ready_reply(application, environ)
    missing = f"the default model '{default.configured}' is not loaded" if default.configured else "no model is loaded"
    return json_reply({**readiness(engine.phase()), "error": missing}, _NOT_YET)
