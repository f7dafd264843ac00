"""`smoke`: checks that a deployed model answers every kind of call through its endpoint, and the same to each.

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

from deploy.smoke_forms import HEADER_SIZE, JSON_TYPE, Agreement, BadFile, Form, Request, WrongAnswer
from deploy.vertex.plan import Call, CheckFailed, Context, EndpointCall, Reply, Steps
from trident.adapters.common.options import BadOption
from trident.adapters.vertex.platform import VertexAI

# Too large for a shared endpoint, but not for the others.
LARGE_BYTES = 1_600_000
_OK = 200
_SHOWN = 300
_HEADER_LENGTH = "inference-header-content-length"
_METRIC = b"nv_inference_request_success"
_REDIRECT = "X-Vertex-Ai-Triton-Redirect"
_SOME_DNS = "ENDPOINT.LOCATION-PROJECT_NUMBER.prediction.vertexai.goog"
Check = Callable[[Reply], str]


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--endpoint", required=True, metavar="ID", help="the endpoint")
    parser.add_argument("--request", required=True, type=Path, metavar="FILE", help="a v2 request in JSON")
    parser.add_argument("--instances", type=Path, metavar="FILE", help="for predict; default: made from the request")
    parser.add_argument("--address", default="", metavar="HOST", help="address of a psc endpoint in this network")


def steps(options: Namespace, at: Context) -> Steps:
    """The plan of smoke calls. Raises BadOption."""
    try:
        given = Request.read(options.request)
    except BadFile as error:
        raise BadOption.of("--request", str(error)) from None
    instances = _instances(options.instances) if options.instances else None
    if "/" in options.address:
        raise BadOption.of("--address", f"it takes a host or an IP address, not '{options.address}'")
    name = at.place.endpoint(options.endpoint)
    endpoint = yield Call(
        title=f"get {options.endpoint}",
        request=GetEndpointRequest(name=name),
        stand_in=Endpoint(name=name, dedicated_endpoint_enabled=True, dedicated_endpoint_dns=_SOME_DNS),
        report=lambda found: address_of(found, at.api, options.address).base,
    )
    yield from _calls(name, address_of(endpoint, at.api, options.address), given, instances)


def _instances(path: Path) -> list[Any]:
    try:
        found = json.loads(path.read_bytes())["instances"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadOption.of("--instances", f"{path} needs 'instances', a list: {error}") from None
    if not isinstance(found, list) or not found:
        raise BadOption.of("--instances", f"{path} needs 'instances', a non-empty list")
    return found


class Address(NamedTuple):
    """The address for calls to an endpoint. `base` has a scheme. `is_large`: it accepts bodies of 10 MB and streams."""

    base: str
    is_large: bool
    private: bool = False


def address_of(endpoint: Endpoint, api: str, address: str) -> Address:
    """The address of an endpoint; a private one needs `address`. Raises CheckFailed."""
    scheme = api.partition("://")[0]
    if address:
        return Address(f"{scheme}://{address}", is_large=True, private=True)
    if endpoint.private_service_connect_config.enable_private_service_connect:
        raise CheckFailed("a psc endpoint has an address in your own network: give it with --address=HOST")
    if endpoint.dedicated_endpoint_enabled:
        return Address(f"{scheme}://{endpoint.dedicated_endpoint_dns}", is_large=True)
    return Address(api, is_large=False)


def _calls(name: str, target: Address, given: Request, instances: list[Any] | None) -> Steps:
    def call(title: str, request: Any, report: Check, **headers: str) -> EndpointCall:
        return EndpointCall(
            title=title,
            request=request,
            stand_in=Reply(200, {}, b""),
            report=report,
            best_effort=True,
            base=target.base,
            private=target.private,
            headers={key.replace("_", "-"): value for key, value in headers.items()},
        )

    def raw(content: bytes, content_type: str = JSON_TYPE) -> RawPredictRequest:
        return RawPredictRequest(endpoint=name, http_body={"data": content, "content_type": content_type})

    v2, binary = (given.body(form, VertexAI.binary_type) for form in (Form.V2, Form.BINARY))
    agreement = Agreement(given.item_count)
    same_v2 = check_answers(agreement, Form.V2)
    # Other instances than those of the request have answers of their own.
    own = agreement if instances is None else Agreement(len(instances))
    if instances is None:
        instances = json.loads(given.body(Form.INSTANCES, "").content)["instances"]
    predict = PredictRequest.from_json(json.dumps({"endpoint": name, "instances": instances}))
    yield call(f"predict with {len(instances)} instances", predict, check_answers(own, Form.INSTANCES))
    yield call("raw predict with v2 JSON", raw(v2.content), same_v2)
    yield call(
        "raw predict with binary tensors",
        raw(binary.content, binary.content_type),
        check_answers(agreement, Form.BINARY),
    )
    # The platform may refuse a call without a body.
    yield call("raw predict, redirected to metrics", raw(b"{}"), check_metrics, **{_REDIRECT: "metrics"})
    if not target.is_large:
        return
    stream = StreamRawPredictRequest(endpoint=name, http_body={"data": v2.content, "content_type": JSON_TYPE})
    yield call("stream raw predict with v2 JSON", stream, same_v2)
    large = v2.content.ljust(LARGE_BYTES)
    yield call(f"raw predict with {len(large):,} bytes", raw(large), same_v2)


def check_answers(agreement: Agreement, form: Form) -> Check:
    """The check of an answer in `form`."""

    def check(reply: Reply) -> str:
        _check_status(reply)
        content_type = reply.headers.get("content-type", "")
        if form is Form.BINARY:
            content_type = f"{HEADER_SIZE}{reply.headers.get(_HEADER_LENGTH, '')}"
        try:
            return agreement.check(form, reply.body, content_type)
        except WrongAnswer as wrong:
            raise CheckFailed(str(wrong)) from None

    return check


def check_metrics(reply: Reply) -> str:
    """Check for the page of metrics."""
    _check_status(reply)
    if _METRIC not in reply.body:
        raise CheckFailed(f"the page has no {_METRIC.decode()}: {_start(reply.body)}")
    return f"{len(reply.body.splitlines())} lines"


def _check_status(reply: Reply) -> None:
    if reply.status != _OK:
        raise CheckFailed(f"status {reply.status}: {_start(reply.body)}")


def _start(body: bytes) -> str:
    return body[:_SHOWN].decode(errors="replace")
