"""`smoke`: checks that a deployed model answers every kind of call through its endpoint.

Source: docs/spec/deploy.md section 5; docs/spec/vertex.md sections A3 and A4.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from google.cloud.aiplatform_v1 import (
    Endpoint,
    GetEndpointRequest,
    PredictRequest,
    RawPredictRequest,
    StreamRawPredictRequest,
)

from app.settings.option import BadOption
from deploy.vertex.call import Call, CheckFailed, EndpointCall, Reply
from deploy.vertex.place import Place
from deploy.vertex.plan import Steps
from deploy.vertex.smoke_check import check_binary, check_metrics, check_predictions, check_v2
from deploy.vertex.smoke_input import SmokeInput, read_smoke_input

_JSON = "application/json"
_REDIRECT = "X-Vertex-Ai-Triton-Redirect"
_SOME_DNS = "ENDPOINT.LOCATION-PROJECT_NUMBER.prediction.vertexai.goog"


def add_smoke_options(parser: ArgumentParser) -> None:
    parser.add_argument("--endpoint", required=True, metavar="ID", help="the endpoint")
    parser.add_argument("--request", required=True, type=Path, metavar="FILE", help="a v2 request in JSON")
    parser.add_argument("--instances", type=Path, metavar="FILE", help="for predict; default: made from the request")
    parser.add_argument("--address", default="", metavar="HOST", help="address of a psc endpoint in this network")


class Door(NamedTuple):
    """The address for calls to an endpoint. `base` has a scheme. `is_large`: it accepts bodies of 10 MB and streams."""

    base: str
    is_large: bool
    private: bool = False


def smoke(options: Namespace, place: Place, api: str) -> Steps:
    """The plan of smoke calls; `api` is the address of the API, with its scheme. Raises BadOption."""
    given = read_smoke_input(options.request, options.instances)
    if "/" in options.address:
        raise BadOption.of("--address", f"it takes a host or an IP address, not '{options.address}'")
    name = place.endpoint(options.endpoint)
    endpoint = yield Call(
        title=f"get {options.endpoint}",
        request=GetEndpointRequest(name=name),
        stand_in=Endpoint(name=name, dedicated_endpoint_enabled=True, dedicated_endpoint_dns=_SOME_DNS),
        report=lambda found: door_of(found, api, options.address).base,
    )
    yield from _calls(name, door_of(endpoint, api, options.address), given)


def door_of(endpoint: Endpoint, api: str, address: str) -> Door:
    """The door of an endpoint; a private one needs `address`. Raises CheckFailed."""
    scheme = api.partition("://")[0]
    if address:
        return Door(f"{scheme}://{address}", is_large=True, private=True)
    if endpoint.private_service_connect_config.enable_private_service_connect:
        raise CheckFailed("a psc endpoint has an address in your own network: give it with --address=HOST")
    if endpoint.dedicated_endpoint_enabled:
        return Door(f"{scheme}://{endpoint.dedicated_endpoint_dns}", is_large=True)
    return Door(api, is_large=False)


def _calls(name: str, door: Door, given: SmokeInput) -> Steps:
    def call(title: str, request: Any, report: Callable[[Reply], str], **headers: str) -> EndpointCall:
        return EndpointCall(
            title=title,
            request=request,
            stand_in=Reply(200, {}, b""),
            report=report,
            best_effort=True,
            base=door.base,
            private=door.private,
            headers={key.replace("_", "-"): value for key, value in headers.items()},
        )

    def raw(content: bytes, content_type: str = _JSON) -> RawPredictRequest:
        return RawPredictRequest(endpoint=name, http_body={"data": content, "content_type": content_type})

    predict = PredictRequest.from_json(json.dumps({"endpoint": name, "instances": given.instances}))
    count = len(given.instances)
    yield call(f"predict with {count} instances", predict, lambda reply: check_predictions(reply, count))
    yield call("raw predict with v2 JSON", raw(given.text), check_v2)
    yield call("raw predict with binary tensors", raw(*given.binary()), check_binary)
    # The platform may refuse a call without a body.
    yield call("raw predict, redirected to metrics", raw(b"{}"), check_metrics, **{_REDIRECT: "metrics"})
    if not door.is_large:
        return
    stream = StreamRawPredictRequest(endpoint=name, http_body={"data": given.text, "content_type": _JSON})
    yield call("stream raw predict with v2 JSON", stream, check_v2)
    large = given.large()
    yield call(f"raw predict with {len(large):,} bytes", raw(large), check_v2)
