"""Disabled features: reads are answered as by a Triton with the feature off, changes are refused.

Source: docs/spec/trace-and-log.md section 1.
"""

from __future__ import annotations

from core.errors import InvalidRequest
from core.frontend.fixed_settings import trace_change_refused
from core.http.front_end import HttpFrontEnd
from core.http.reply import Environ, Reply, json_reply
from core.http.request_body import read_body


def trace_setting(front_end: HttpFrontEnd, environ: Environ, model: str = "") -> Reply:
    """The settings, which are off; an update without a body reads them, too."""
    if model and not front_end.engine.is_model_ready(model):
        raise InvalidRequest(f"Request for unknown model : {model}", model=model)
    if _wants_change(front_end, environ):
        raise trace_change_refused()
    return json_reply(dict(front_end.options.trace_settings))


def _wants_change(front_end: HttpFrontEnd, environ: Environ) -> bool:
    return environ["REQUEST_METHOD"] == "POST" and bool(read_body(environ, front_end.options.max_input_size))
