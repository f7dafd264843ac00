"""The model repository: index, load, unload.

All three access storage, so they run off the hub. The engine decides whether loading is allowed.
Source: docs/spec/http.md section 8.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Any

from core.errors import InvalidRequest, ModelLoadFailed
from core.frontend.repository_name import refuse_repository
from core.http.front_end import HttpFrontEnd
from core.http.reply import JSON, Environ, Reply, empty_reply, json_reply
from core.http.request_body import read_object, read_parameters
from core.http.v2.repository_index import repository_index_json

_FILE_PREFIX = "file:"
_LINE_ENDS = b"\r\n"


def index(front_end: HttpFrontEnd, environ: Environ, repository: str = "") -> Reply:
    """The known models; with `{"ready":true}` in the body only the ready ones."""
    ready = read_object(environ, front_end.options.max_input_size).get("ready", False)
    if not isinstance(ready, bool):
        raise InvalidRequest("Invalid value for 'ready': expected a boolean")
    return json_reply(repository_index_json(front_end.bridge.run(front_end.engine.repository_index, ready)))


def load(front_end: HttpFrontEnd, environ: Environ, model: str, repository: str = "") -> Reply:
    """Load the model; answers when it serves."""
    refuse_repository(repository)
    parameters = _load_parameters(read_parameters(environ, front_end.options.max_input_size))
    front_end.bridge.run_long(front_end.engine.load_model, model, parameters)
    return empty_reply(JSON)


def unload(front_end: HttpFrontEnd, environ: Environ, model: str, repository: str = "") -> Reply:
    """Unload the model; answers when unloading has begun."""
    refuse_repository(repository)
    parameters = read_parameters(environ, front_end.options.max_input_size)
    dependents = parameters.get("unload_dependents", False)
    if not isinstance(dependents, bool):
        raise InvalidRequest("Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean")
    front_end.bridge.run(front_end.engine.unload_model, model, dependents)
    return empty_reply(JSON)


def _load_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """`config` as text, `file:PATH` as the bytes of the file. Raises InvalidRequest, ModelLoadFailed."""
    read: dict[str, Any] = {}
    for key, value in parameters.items():
        if not isinstance(value, str):
            raise InvalidRequest(f"Unable to parse '{key}': attempt to access JSON non-string as string")
        if key == "config":
            read[key] = value
        elif key.startswith(_FILE_PREFIX):
            read[key] = _file_content(key, value)
        else:
            raise ModelLoadFailed("unexpected error on creating Triton parameter")
    return read


def _file_content(key: str, text: str) -> bytes:
    try:
        # Tools break base64 into lines. Without `validate`, all other invalid characters would be skipped.
        return b64decode(text.encode("ascii").translate(None, _LINE_ENDS), validate=True)
    except (UnicodeEncodeError, Base64Error) as error:
        raise InvalidRequest(f"'{key}' must be a valid base64 encoded file") from error
