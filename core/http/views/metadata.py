"""What can be read of the server and its models: metadata, configuration, statistics.

The engine knows all of it; lookup errors are its own.
Source: docs/spec/http.md section 3, docs/spec/statistics-and-metrics.md section A.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.http.reply import Environ, Reply, json_reply
from core.http.version_text import version_number

if TYPE_CHECKING:
    from core.http.application import V2Application


def server_metadata(application: V2Application, environ: Environ) -> Reply:
    return json_reply(application.engine.server_metadata())


def model_metadata(application: V2Application, environ: Environ, model: str, version: str = "") -> Reply:
    return json_reply(application.engine.model_metadata(model, version_number(version)))


def model_config(application: V2Application, environ: Environ, model: str, version: str = "") -> Reply:
    return json_reply(application.engine.model_config(model, version_number(version)))


def model_statistics(application: V2Application, environ: Environ, model: str = "", version: str = "") -> Reply:
    """Statistics of one model or, without a name, of all that are ready."""
    return json_reply(application.engine.model_statistics(model, version_number(version)))
