"""The settings of the log: read and changed while the server runs.

Source: docs/spec/trace-and-log.md section 5.
"""

from __future__ import annotations

from core.errors import InvalidRequest
from core.frontend.log_settings import changed_settings, shown_settings
from core.http.front_end import HttpFrontEnd
from core.http.reply import Environ, Reply, json_reply
from core.http.request_body import read_object


def log_settings(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The settings, after the changes in the body of a POST. A setting that is null is not changed."""
    if environ["REQUEST_METHOD"] == "POST":
        document = read_object(environ, front_end.options.max_input_size)
        wanted = {name: value for name, value in document.items() if value is not None}
        for levels in changed_settings(wanted, _as_bool, _as_integer, _as_text):
            front_end.bridge.run(front_end.engine.change_log, levels)
    return json_reply(shown_settings())


def _as_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"Unable to parse '{name}': attempt to access JSON non-boolean as boolean")
    return value


def _as_integer(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(
            f"Unable to parse '{name}': attempt to access JSON non-unsigned-integer as unsigned-integer"
        )
    return value


def _as_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"Unable to parse '{name}': attempt to access JSON non-string as string")
    return value
