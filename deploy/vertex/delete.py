"""`delete`: undeploys models and deletes endpoints and models; one failure does not stop the others.

Source: docs/spec/deploy.md section 5.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
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

from deploy.vertex.options import LABEL, expiry_labels, expiry_of
from deploy.vertex.plan import Call, Context, Place, Steps
from trident.adapters.common.options import BadOption

_SOME_ENDPOINT = "ENDPOINT"
_SOME_MODEL = "DEPLOYED_MODEL"


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--endpoint", action="append", default=[], metavar="ID", help="an endpoint with its deployed models"
    )
    parser.add_argument("--model", action="append", default=[], metavar="ID[@VERSION]", help="a model or a version")
    parser.add_argument("--expired", action="store_true", help="every endpoint whose --ttl has ended")


def steps(options: Namespace, at: Context) -> Steps:
    """The plan that deletes resources. Raises BadOption."""
    if not (options.endpoint or options.model or options.expired):
        raise BadOption("Nothing to delete: give --endpoint, --model or --expired")
    endpoints = [at.place.endpoint(text) for text in options.endpoint]
    models = [at.place.model(text) for text in options.model]
    if options.expired:
        found = yield _listing(at.place, at.now)
        endpoints += [each.name for each in found or () if each.name not in endpoints and is_expired(each, at.now)]
    for name in endpoints:
        yield from _remove_endpoint(name)
    for name in models:
        yield Call(
            title=f"delete the model {_last(name)}",
            request=DeleteModelVersionRequest(name=name) if "@" in name else DeleteModelRequest(name=name),
            best_effort=True,
        )


def is_expired(endpoint: Endpoint, now: datetime) -> bool:
    """Whether its label names a time that has passed; False for a malformed label."""
    try:
        expiry = expiry_of(endpoint.labels)
    except ValueError:
        return False
    return expiry is not None and expiry <= now


def undeploy_requests(endpoint: Endpoint) -> list[UndeployModelRequest]:
    """The requests to undeploy all models: those without traffic first, and the last one takes over all traffic.

    The platform does not undeploy a model with traffic unless it is the only one.
    """
    split = dict(endpoint.traffic_split)
    ids = sorted((model.id for model in endpoint.deployed_models), key=lambda identity: split.get(identity, 0))
    return [
        UndeployModelRequest(
            endpoint=endpoint.name,
            deployed_model_id=identity,
            traffic_split={ids[-1]: 100} if split.get(identity) and identity != ids[-1] else {},
        )
        for identity in ids
    ]


def _listing(place: Place, now: datetime) -> Call:
    labels = expiry_labels(timedelta(), now)
    return Call(
        title="find expired endpoints",
        request=ListEndpointsRequest(parent=place.name, filter=f"labels.{LABEL}:*"),
        stand_in=[Endpoint(name=f"{place.name}/endpoints/{_SOME_ENDPOINT}", labels=labels)],
        report=lambda found: _listed(found, now),
        best_effort=True,
    )


def _listed(found: Iterable[Endpoint], now: datetime) -> str:
    return "\n".join(_listed_line(each, now) for each in found) or "no endpoint has such a label"


def _listed_line(endpoint: Endpoint, now: datetime) -> str:
    name, label = _last(endpoint.name), endpoint.labels.get(LABEL, "")
    try:
        expiry_of(endpoint.labels)
    except ValueError:
        return f"{name} stays: its label {LABEL} is '{label}', which is not a time"
    return f"{name} expired {label}" if is_expired(endpoint, now) else f"{name} stays until {label}"


def _remove_endpoint(name: str) -> Steps:
    deployed = DeployedModel(id=_SOME_MODEL)
    endpoint: Any = yield Call(
        title=f"get {_last(name)}",
        request=GetEndpointRequest(name=name),
        stand_in=Endpoint(name=name, deployed_models=[deployed], traffic_split={_SOME_MODEL: 100}),
        best_effort=True,
    )
    if endpoint is None:
        return
    for request in undeploy_requests(endpoint):
        yield Call(title=f"undeploy {request.deployed_model_id}", request=request, best_effort=True)
    yield Call(title=f"delete the endpoint {_last(name)}", request=DeleteEndpointRequest(name=name), best_effort=True)


def _last(name: str) -> str:
    return name.rpartition("/")[2]
