"""Features that are off: what can be read is answered as Triton does with the feature off, changes are refused.

Source: docs/spec/shared-memory.md sections 1 to 4, docs/spec/trace-and-log.md sections 1 and 5, docs/spec/http.md
section 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import InvalidRequest, Unsupported
from core.http.errors import RegionNotFound
from core.http.reply import Environ, Reply, json_reply
from core.http.request_body import read_body

if TYPE_CHECKING:
    from core.http.application import V2Application


def shared_memory_status(application: V2Application, environ: Environ, kind: str, region: str = "") -> Reply:
    """No region can be registered, so the list is empty and every name unknown."""
    if region:
        raise RegionNotFound(f"Unable to find {kind} shared memory region: '{region}'")
    return json_reply([])


def shared_memory_change(application: V2Application, environ: Environ, kind: str, region: str = "") -> Reply:
    raise Unsupported("Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")


def trace_setting(application: V2Application, environ: Environ, model: str = "") -> Reply:
    """The settings, which say OFF; an update without a body is a question as well."""
    if model and not application.engine.is_model_ready(model):
        raise InvalidRequest(f"Request for unknown model : {model}", model=model)
    if _wants_change(application, environ):
        raise Unsupported("trace settings can not be updated, this server does not trace")
    return json_reply(dict(application.options.trace_settings))


def logging_setting(application: V2Application, environ: Environ) -> Reply:
    """The settings as given at start."""
    if _wants_change(application, environ):
        raise Unsupported("log settings can not be updated through network protocol, use the options at start")
    return json_reply(dict(application.options.log_settings))


def generate(application: V2Application, environ: Environ, model: str, version: str = "") -> Reply:
    raise Unsupported(f"generate is not supported by this server, use /v2/models/{model}/infer", model=model)


def _wants_change(application: V2Application, environ: Environ) -> bool:
    return environ["REQUEST_METHOD"] == "POST" and bool(read_body(environ, application.options.max_input_size))
