"""The trace settings of the server and of models: read and changed while the server runs.

Source: docs/spec/trace-and-log.md section 1.
"""

from __future__ import annotations

from core.errors import InvalidRequest
from core.frontend.trace_settings import check_ready, wanted_changes
from core.http.front_end import HttpFrontEnd
from core.http.reply import Environ, Reply, json_reply
from core.http.request_body import read_object


def trace_settings(front_end: HttpFrontEnd, environ: Environ, model: str = "") -> Reply:
    """The settings, after the changes in the body of a POST. A setting that is null is inherited again."""
    run, engine = front_end.bridge.run, front_end.engine
    if model:
        check_ready(lambda: run(engine.is_model_ready, model), model)
    if environ["REQUEST_METHOD"] == "POST":
        document = read_object(environ, front_end.options.max_input_size)
        if document:
            run(engine.change_trace, model, wanted_changes(document, _as_texts, _as_text, ""))
    return json_reply(run(engine.trace_settings, model))


def _as_texts(name: str, value: object) -> list[str]:
    if not isinstance(value, list):
        raise InvalidRequest(f"Unable to parse '{name}': attempt to access JSON non-array as array")
    return [_as_text(name, each) for each in value]


def _as_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"Unable to parse '{name}': attempt to access JSON non-string as string")
    return value
