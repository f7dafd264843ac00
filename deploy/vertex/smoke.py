"""`smoke`: checks that a deployed model answers every kind of call through its endpoint, and the same to each.

Source: docs/spec/deploy.md section 5; docs/spec/vertex.md sections A3 and A4.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple

from google.cloud.aiplatform_v1 import Endpoint, GetEndpointRequest

from deploy.smoke_forms import HEADER_SIZE, JSON_TYPE, Agreement, BadFile, Form, Request, WrongAnswer
from deploy.vertex.api import CallFailed, Reply, Vertex
from trident.adapters.common.options import BadOption
from trident.adapters.vertex.platform import VertexAI

# Too large for a shared endpoint, but not for the others.
LARGE_BYTES = 1_600_000
_SHOWN = 300
_HEADER_LENGTH = "inference-header-content-length"
_METRIC = b"nv_inference_request_success"
_SOME_DNS = "ENDPOINT.LOCATION-PROJECT_NUMBER.prediction.vertexai.goog"
Check = Callable[[Reply], str]


def act(vertex: Vertex, options: Namespace) -> None:
    try:
        given = Request.read(options.request)
    except BadFile as error:
        raise BadOption.of("--request", str(error)) from None
    name = vertex.endpoint(options.endpoint)
    endpoint = vertex.call(
        f"get {options.endpoint}",
        GetEndpointRequest(name=name),
        stand_in=Endpoint(name=name, dedicated_endpoint_enabled=True, dedicated_endpoint_dns=_SOME_DNS),
        report=lambda found: address_of(found, vertex.address, options.address).base,
    )
    target = address_of(endpoint, vertex.address, options.address)

    def call(title: str, method: str, body: bytes, content_type: str, check: Check, **headers: str) -> None:
        headers = {"Content-Type": content_type, **{key.replace("_", "-"): value for key, value in headers.items()}}
        vertex.post(title, f"{target.base}/v1/{name}:{method}", body, headers, check, is_private=target.is_private)

    v2, binary = (given.body(form, VertexAI.binary_type) for form in (Form.V2, Form.BINARY))
    agreement = Agreement(given.item_count)
    same_v2 = check_answers(agreement, Form.V2)
    same_instances = check_answers(agreement, Form.INSTANCES)
    instances = given.body(Form.INSTANCES, "").content
    call(f"predict with {given.item_count} instances", "predict", instances, JSON_TYPE, same_instances)
    call("raw predict with v2 JSON", "rawPredict", v2.content, JSON_TYPE, same_v2)
    same_binary = check_answers(agreement, Form.BINARY)
    call("raw predict with binary tensors", "rawPredict", binary.content, binary.content_type, same_binary)
    # The platform may refuse a call without a body.
    redirect = {"X_Vertex_Ai_Triton_Redirect": "metrics"}
    call("raw predict, redirected to metrics", "rawPredict", b"{}", JSON_TYPE, check_metrics, **redirect)
    if target.is_large:
        call("stream raw predict with v2 JSON", "streamRawPredict", v2.content, JSON_TYPE, same_v2)
        large = v2.content.ljust(LARGE_BYTES)
        call(f"raw predict with {len(large):,} bytes", "rawPredict", large, JSON_TYPE, same_v2)


class Address(NamedTuple):
    """The address for calls to an endpoint. `base` has a scheme. `is_large`: it accepts bodies of 10 MB and streams."""

    base: str
    is_large: bool
    is_private: bool = False


def address_of(endpoint: Endpoint, api: str, address: str) -> Address:
    """The address of an endpoint; a private one needs `address`. Raises CallFailed."""
    scheme = api.partition("://")[0]
    if address:
        return Address(f"{scheme}://{address}", is_large=True, is_private=True)
    if endpoint.private_service_connect_config.enable_private_service_connect:
        raise CallFailed("a psc endpoint has an address in your own network: give it with --address=HOST")
    if endpoint.dedicated_endpoint_enabled:
        return Address(f"{scheme}://{endpoint.dedicated_endpoint_dns}", is_large=True)
    return Address(api, is_large=False)


def check_answers(agreement: Agreement, form: Form) -> Check:

    def check(reply: Reply) -> str:
        _check_status(reply)
        content_type = reply.headers.get("content-type", "")
        if form is Form.BINARY:
            content_type = f"{HEADER_SIZE}{reply.headers.get(_HEADER_LENGTH, '')}"
        try:
            return agreement.check(form, reply.body, content_type)
        except WrongAnswer as wrong:
            raise CallFailed(str(wrong)) from None

    return check


def check_metrics(reply: Reply) -> str:
    _check_status(reply)
    if _METRIC not in reply.body:
        raise CallFailed(f"the page has no {_METRIC.decode()}: {_start(reply.body)}")
    return f"{len(reply.body.splitlines())} lines"


def _check_status(reply: Reply) -> None:
    if reply.status != 200:
        raise CallFailed(f"status {reply.status}: {_start(reply.body)}")


def _start(body: bytes) -> str:
    return body[:_SHOWN].decode(errors="replace")
