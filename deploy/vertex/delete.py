"""`delete`: undeploys models and deletes endpoints and models; one failure does not stop the others.

Source: docs/spec/deploy.md section 5.
"""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime, timedelta
from typing import Any

from google.cloud.aiplatform_v1 import (
    DeleteEndpointRequest,
    DeleteModelRequest,
    DeleteModelVersionRequest,
    DeployedModel,
    Endpoint,
    GetEndpointRequest,
    ListEndpointsRequest,
    UndeployModelRequest,
)

from deploy.vertex.api import Vertex
from deploy.vertex.deploy import LABEL, expiry_labels, expiry_of
from trident.adapters.common.options import BadOption


def act(vertex: Vertex, options: Namespace) -> None:
    if not (options.endpoint or options.model or options.expired):
        raise BadOption("Nothing to delete: give --endpoint, --model or --expired")
    endpoints = [vertex.endpoint(text) for text in options.endpoint]
    models = [vertex.model(text) for text in options.model]
    if options.expired:
        over = Endpoint(name=f"{vertex.place}/endpoints/ENDPOINT", labels=expiry_labels(timedelta(), vertex.now))
        found: list[Endpoint] | None = vertex.call(
            "find expired endpoints",
            ListEndpointsRequest(parent=vertex.place, filter=f"labels.{LABEL}:*"),
            stand_in=[over],
            report=lambda found: "\n".join(_listed(each, vertex.now) for each in found) or "no endpoint expires",
            best_effort=True,
        )
        expired = [each.name for each in found or () if _listed(each, vertex.now).startswith("expired")]
        endpoints += [name for name in expired if name not in endpoints]
    for name in endpoints:
        _remove_endpoint(vertex, name)
    for name in models:
        request = DeleteModelVersionRequest(name=name) if "@" in name else DeleteModelRequest(name=name)
        vertex.call(f"delete the model {_last(name)}", request, best_effort=True)


def _listed(endpoint: Endpoint, now: datetime) -> str:
    name, label = _last(endpoint.name), endpoint.labels.get(LABEL, "")
    try:
        is_over = expiry_of(endpoint.labels) <= now
    except ValueError:
        return f"stays: {name}, whose label {LABEL} is '{label}', which is not a time"
    return f"{'expired' if is_over else 'stays'}: {name}, {label}"


def _remove_endpoint(vertex: Vertex, name: str) -> None:
    """Undeploy all models, those without traffic first; the last one takes over all traffic.

    The platform does not undeploy a model with traffic unless it is the only one.
    """
    some = "DEPLOYED_MODEL"
    endpoint: Any = vertex.call(
        f"get {_last(name)}",
        GetEndpointRequest(name=name),
        stand_in=Endpoint(name=name, deployed_models=[DeployedModel(id=some)], traffic_split={some: 100}),
        best_effort=True,
    )
    if endpoint is None:
        return
    split = dict(endpoint.traffic_split)
    ids = sorted((model.id for model in endpoint.deployed_models), key=lambda identity: split.get(identity, 0))
    for identity in ids:
        moved = {ids[-1]: 100} if split.get(identity) and identity != ids[-1] else {}
        request = UndeployModelRequest(endpoint=name, deployed_model_id=identity, traffic_split=moved)
        vertex.call(f"undeploy {identity}", request, best_effort=True)
    vertex.call(f"delete the endpoint {_last(name)}", DeleteEndpointRequest(name=name), best_effort=True)


def _last(name: str) -> str:
    return name.rpartition("/")[2]
