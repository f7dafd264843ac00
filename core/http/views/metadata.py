"""Metadata of the server and its models, their configurations and their statistics.

The engine raises the lookup errors.
Source: docs/spec/http.md section 3, docs/spec/statistics-and-metrics.md section A.
"""

from __future__ import annotations

from core.frontend.statistics import model_statistics_json, slowest_requests_json
from core.frontend.version_text import version_number
from core.http.front_end import HttpFrontEnd
from core.http.reply import Environ, Reply, json_reply
from core.http.v2.metadata import model_metadata_json, server_metadata_json
from core.http.v2.model_config import model_config_json


def server_metadata(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    return json_reply(server_metadata_json(front_end.engine.server_metadata()))


def model_metadata(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    return json_reply(model_metadata_json(front_end.engine.model_metadata(model, version_number(version))))


def model_config(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    config = front_end.engine.model_config(model, version_number(version))
    # The first one imports protobuf, which would stop the hub.
    return json_reply(front_end.bridge.run(model_config_json, config))


def model_statistics(front_end: HttpFrontEnd, environ: Environ, model: str = "", version: str = "") -> Reply:
    """The statistics of one model or, without a name, of all that are ready."""
    return json_reply(model_statistics_json(front_end.engine.model_statistics(model, version_number(version))))


def slowest_requests(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """The slowest and the last failed requests of a model in the last hour."""
    found = front_end.engine.slowest_requests(model, version_number(version))
    return json_reply(slowest_requests_json(model, found))
