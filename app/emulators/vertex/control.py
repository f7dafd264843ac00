"""The calls of the REST API that change what is deployed, as the SDK and gcloud make them.

Source: docs/spec/vertex.md section A7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import orjson

from trident.app.emulators.vertex.limits import invalid
from trident.app.emulators.vertex.project import Project

_PATH = re.compile(r"/v1(?:beta1)?/projects/[^/]+/locations/(?P<location>[^/]+)/(?P<rest>.+)")
_OPERATION = re.compile(r"(?:.+/)?operations/[^/:]+")


class _Call(NamedTuple):
    """`on` is the id in the path, `address` the API's."""

    location: str
    on: str
    query: Mapping[str, str]
    document: dict[str, Any]
    address: str


def control_call(method: str, target: str) -> Callable[[Project, bytes, str], dict[str, Any]] | None:
    """What does such a call, given the project, the body and the API's address. It raises GoogleError.

    None for the path of another call.
    """
    path, _, query = target.partition("?")
    found = _PATH.fullmatch(unquote(path))
    if found is None:
        return None
    location = found["location"]
    if method == "GET" and _OPERATION.fullmatch(found["rest"]):
        return lambda project, *_: project.operation(found["rest"])
    for wanted, pattern, act in _CALLS:
        match = re.fullmatch(pattern, found["rest"])
        if wanted == method and match is not None:
            on, given = (match[1] if match.re.groups else ""), dict(parse_qsl(query))
            return lambda project, body, address: act(project, _Call(location, on, given, _document(body), address))
    return None


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from None
    if type(document) is not dict:
        raise invalid("Invalid JSON payload received. The root must be an object")
    return document


_CALLS: tuple[tuple[str, str, Callable[[Project, _Call], dict[str, Any]]], ...] = (
    ("POST", "models:upload", lambda project, call: project.upload(call.location, call.document)),
    ("GET", "models", lambda project, call: project.models()),
    ("GET", "models/([^/:]+)", lambda project, call: project.model(call.on)),
    ("DELETE", "models/([^/:]+)(?::deleteVersion)?", lambda project, call: project.delete_model(call.on)),
    (
        "POST",
        "endpoints",
        lambda project, call: project.create_endpoint(call.location, call.document, call.query.get("endpointId", "")),
    ),
    ("GET", "endpoints", lambda project, call: project.endpoints(call.query.get("filter", ""), call.address)),
    ("GET", "endpoints/([^/:]+)", lambda project, call: project.endpoint(call.on, call.address)),
    (
        "PATCH",
        "endpoints/([^/:]+)",
        lambda project, call: project.update_endpoint(
            call.on, call.document, call.query.get("updateMask", ""), call.address
        ),
    ),
    ("DELETE", "endpoints/([^/:]+)", lambda project, call: project.delete_endpoint(call.on)),
    ("POST", "endpoints/([^/:]+):deployModel", lambda project, call: project.deploy(call.on, call.document)),
    ("POST", "endpoints/([^/:]+):undeployModel", lambda project, call: project.undeploy(call.on, call.document)),
    ("POST", "batchPredictionJobs", lambda project, call: project.jobs.create(call.location, call.document)),
    ("GET", "batchPredictionJobs/([^/:]+)", lambda project, call: project.jobs.job(call.on)),
)
