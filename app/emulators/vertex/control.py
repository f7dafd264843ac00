"""The calls of the REST API that change what is deployed, as the SDK and gcloud make them.

Source: docs/spec/vertex.md section A7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from flask import g, request

from trident.app.emulators.vertex.limits import invalid
from trident.app.emulators.vertex.project import Project

Document = dict[str, Any]


def control_calls(project: Project, address: str) -> list[tuple[str, str, Callable[..., Document]]]:
    """The method, the path below the location, and what does the call; `address` is the API's."""
    return [
        ("POST", "models:upload", lambda: project.upload(g.location, _body())),
        ("GET", "models", project.models),
        ("GET", "models/<id:reference>", project.model),
        ("DELETE", "models/<id:reference>", project.delete_model),
        ("DELETE", "models/<id:reference>:deleteVersion", project.delete_model),
        (
            "POST",
            "endpoints",
            lambda: project.create_endpoint(g.location, _body(), request.args.get("endpointId", "")),
        ),
        ("GET", "endpoints", lambda: project.endpoints(request.args.get("filter", ""), address)),
        ("GET", "endpoints/<id:identity>", lambda identity: project.endpoint(identity, address)),
        (
            "PATCH",
            "endpoints/<id:identity>",
            lambda identity: project.update_endpoint(identity, _body(), request.args.get("updateMask", ""), address),
        ),
        ("DELETE", "endpoints/<id:identity>", project.delete_endpoint),
        ("POST", "endpoints/<id:identity>:deployModel", lambda identity: project.deploy(identity, _body())),
        ("POST", "endpoints/<id:identity>:undeployModel", lambda identity: project.undeploy(identity, _body())),
        ("POST", "batchPredictionJobs", lambda: project.jobs.create(g.location, _body())),
        ("GET", "batchPredictionJobs/<id:number>", project.jobs.job),
        ("GET", "operations/<id:name>", project.operation),
        ("GET", "<path:of>/operations/<id:name>", lambda of, name: project.operation(name)),
    ]


def _body() -> Document:
    try:
        document = orjson.loads(request.get_data() or b"{}")
    except orjson.JSONDecodeError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from None
    if type(document) is not dict:
        raise invalid("Invalid JSON payload received. The root must be an object")
    return document
