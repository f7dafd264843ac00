"""`smoke`: checks that a deployed model answers every kind of call through its endpoint.

Source: docs/spec/deploy.md section 5; docs/spec/vertex.md sections A3 and A4.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.cloud.aiplatform_v1 import (
    Endpoint,
    GetEndpointRequest,
    PredictRequest,
    PredictResponse,
    RawPredictRequest,
    StreamRawPredictRequest,
)
from google.protobuf.json_format import ParseError

from deploy.vertex.plan import Call, CheckFailed, Context, EndpointCall, Reply, Steps
from trident.adapters.common.options import BadOption
from trident.app.settings.sources import nearest
from trident.core.inference.tensors import BY_NAME, element_count, pack_bytes

BINARY_TYPE = "application/vnd.vertex-ai-triton.binary+json;json-header-size={}"
# Too large for a shared endpoint, but not for the others.
LARGE_BYTES = 1_600_000
_LITTLE = "<"


@dataclass(frozen=True, slots=True)
class SmokeInput:
    """`document` is the request, `text` its JSON as sent; `instances` are for `predict`."""

    document: dict[str, Any]
    text: bytes
    instances: list[Any]

    @property
    def output_names(self) -> list[str]:
        """The requested outputs; empty for all."""
        return [each["name"] for each in self.document.get("outputs", ())]

    def large(self) -> bytes:
        """The request padded to a size that only dedicated and private endpoints accept."""
        return self.text + b" " * (LARGE_BYTES - len(self.text))

    def binary(self) -> tuple[bytes, str]:
        """The request with binary inputs and outputs, and its content type."""
        tensors, parts = [], []
        for each in self.document["inputs"]:
            packed = _packed(each)
            head = {name: each[name] for name in ("name", "shape", "datatype")}
            tensors.append({**head, "parameters": {"binary_data_size": len(packed)}})
            parts.append(packed)
        outputs = [{"name": name, "parameters": {"binary_data": True}} for name in self.output_names]
        asked: dict[str, Any] = {"outputs": outputs} if outputs else {"parameters": {"binary_data_output": True}}
        head_text = json.dumps({"inputs": tensors, **asked}).encode()
        return head_text + b"".join(parts), BINARY_TYPE.format(len(head_text))


def read_smoke_input(request: Path, instances: Path | None) -> SmokeInput:
    """Read the files. Without `instances` they are made from the first dimension of the request. Raises BadOption."""
    text = _read(request, "--request")
    document = _parsed(text, request, "--request")
    tensors = document.get("inputs") if isinstance(document, dict) else None
    if not isinstance(tensors, list) or not tensors:
        raise BadOption.of("--request", f"{request} is not a request of the v2 protocol: it needs 'inputs', a list")
    for each in tensors:
        _check_tensor(each, request)
    if instances is None:
        return SmokeInput(document, text, _instances(tensors))
    given = _parsed(_read(instances, "--instances"), instances, "--instances")
    found = given.get("instances") if isinstance(given, dict) else None
    if not isinstance(found, list) or not found:
        raise BadOption.of("--instances", f"{instances} needs 'instances', a non-empty list")
    return SmokeInput(document, text, found)


def _read(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadOption.of(flag, f"{path}: {error.strerror}") from None


def _parsed(text: bytes, path: Path, flag: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadOption.of(flag, f"{path} is not JSON: {error}") from None


def _check_tensor(tensor: Any, path: Path) -> None:
    if not isinstance(tensor, dict) or not {"name", "shape", "datatype", "data"} <= tensor.keys():
        raise BadOption.of("--request", f"{path}: an input needs name, shape, datatype and data")
    name, datatype = tensor["name"], str(tensor["datatype"])
    if datatype not in BY_NAME:
        raise BadOption.of("--request", f"{path}: input '{name}': no such datatype{nearest(datatype, BY_NAME)}")
    try:
        fits = _array(tensor).size == element_count(tensor["shape"])
    except (ValueError, TypeError, OverflowError) as error:
        raise BadOption.of("--request", f"{path}: input '{name}': {error}") from None
    if not fits:
        raise BadOption.of("--request", f"{path}: input '{name}': its data does not fill its shape {tensor['shape']}")


def _array(tensor: dict[str, Any]) -> np.ndarray[Any, Any]:
    datatype = tensor["datatype"]
    if datatype == "BF16":
        raise ValueError("BF16 has no form in JSON")
    return np.array(tensor["data"], BY_NAME[datatype].dtype)


def _packed(tensor: dict[str, Any]) -> bytes:
    array = _array(tensor)
    if tensor["datatype"] == "BYTES":
        return bytes(pack_bytes(str(each).encode() for each in array.reshape(-1)))
    return array.astype(array.dtype.newbyteorder(_LITTLE)).tobytes()


def _instances(tensors: Sequence[dict[str, Any]]) -> list[Any]:
    shaped = {each["name"]: np.array(each["data"], object).reshape(each["shape"]) for each in tensors}
    counts = {array.shape[:1] for array in shaped.values()}
    if len(counts) != 1 or counts == {()}:
        raise BadOption.of("--request", "its inputs differ in their first dimension: give --instances=FILE")
    ((count,),) = counts
    return [{name: array.tolist()[index] for name, array in shaped.items()} for index in range(count)]


_OK = 200
_SHOWN = 300
_HEADER_LENGTH = "inference-header-content-length"
_METRIC = b"nv_inference_request_success"


def check_predictions(reply: Reply, count: int) -> str:
    """Check for one prediction per instance."""
    _check_status(reply)
    try:
        answer = PredictResponse.from_json(reply.body, ignore_unknown_fields=True)
    except (ValueError, ParseError) as error:
        raise CheckFailed(f"the response is not one to predict: {error}") from None
    if len(answer.predictions) != count:
        raise CheckFailed(f"{len(answer.predictions)} predictions for {count} instances")
    return f"{count} predictions by deployed model {answer.deployed_model_id}"


def check_v2(reply: Reply) -> str:
    """Check for a response of the v2 protocol in JSON."""
    _check_status(reply)
    return _outputs_text(_json(reply.body))


def check_binary(reply: Reply) -> str:
    """Check for a response of the v2 protocol with binary outputs of the declared sizes."""
    _check_status(reply)
    length = reply.headers.get(_HEADER_LENGTH, "")
    if not length.isdecimal():
        raise CheckFailed(f"the response has no {_HEADER_LENGTH}, so its outputs are not binary: {_start(reply.body)}")
    head = _json(reply.body[: int(length)])
    described = _outputs_text(head)
    sizes = [each.get("parameters", {}).get("binary_data_size", 0) for each in head["outputs"]]
    if int(length) + sum(sizes) != len(reply.body):
        raise CheckFailed(f"{len(reply.body)} bytes, but the header of {length} bytes declares {sum(sizes)} after it")
    return f"{described}, {sum(sizes)} bytes"


def check_metrics(reply: Reply) -> str:
    """Check for the page of metrics."""
    _check_status(reply)
    if _METRIC not in reply.body:
        raise CheckFailed(f"the page has no {_METRIC.decode()}: {_start(reply.body)}")
    return f"{len(reply.body.splitlines())} lines"


def _check_status(reply: Reply) -> None:
    if reply.status != _OK:
        raise CheckFailed(f"status {reply.status}: {_start(reply.body)}")


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("outputs"), list) or not found["outputs"]:
        raise CheckFailed(f"the response has no outputs: {_start(text)}")
    return found


def _outputs_text(document: dict[str, Any]) -> str:
    described = ", ".join(
        f"{each.get('name')} {each.get('datatype')} {each.get('shape')}" for each in document["outputs"]
    )
    return f"{document.get('model_name')} {document.get('model_version')}: {described}"


def _start(body: bytes) -> str:
    return body[:_SHOWN].decode(errors="replace")


_JSON = "application/json"
_REDIRECT = "X-Vertex-Ai-Triton-Redirect"
_SOME_DNS = "ENDPOINT.LOCATION-PROJECT_NUMBER.prediction.vertexai.goog"


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--endpoint", required=True, metavar="ID", help="the endpoint")
    parser.add_argument("--request", required=True, type=Path, metavar="FILE", help="a v2 request in JSON")
    parser.add_argument("--instances", type=Path, metavar="FILE", help="for predict; default: made from the request")
    parser.add_argument("--address", default="", metavar="HOST", help="address of a psc endpoint in this network")


class Address(NamedTuple):
    """The address for calls to an endpoint. `base` has a scheme. `is_large`: it accepts bodies of 10 MB and streams."""

    base: str
    is_large: bool
    private: bool = False


def steps(options: Namespace, at: Context) -> Steps:
    """The plan of smoke calls. Raises BadOption."""
    given = read_smoke_input(options.request, options.instances)
    if "/" in options.address:
        raise BadOption.of("--address", f"it takes a host or an IP address, not '{options.address}'")
    name = at.place.endpoint(options.endpoint)
    endpoint = yield Call(
        title=f"get {options.endpoint}",
        request=GetEndpointRequest(name=name),
        stand_in=Endpoint(name=name, dedicated_endpoint_enabled=True, dedicated_endpoint_dns=_SOME_DNS),
        report=lambda found: address_of(found, at.api, options.address).base,
    )
    yield from _calls(name, address_of(endpoint, at.api, options.address), given)


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


def _calls(name: str, target: Address, given: SmokeInput) -> Steps:
    def call(title: str, request: Any, report: Callable[[Reply], str], **headers: str) -> EndpointCall:
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

    def raw(content: bytes, content_type: str = _JSON) -> RawPredictRequest:
        return RawPredictRequest(endpoint=name, http_body={"data": content, "content_type": content_type})

    predict = PredictRequest.from_json(json.dumps({"endpoint": name, "instances": given.instances}))
    count = len(given.instances)
    yield call(f"predict with {count} instances", predict, lambda reply: check_predictions(reply, count))
    yield call("raw predict with v2 JSON", raw(given.text), check_v2)
    yield call("raw predict with binary tensors", raw(*given.binary()), check_binary)
    # The platform may refuse a call without a body.
    yield call("raw predict, redirected to metrics", raw(b"{}"), check_metrics, **{_REDIRECT: "metrics"})
    if not target.is_large:
        return
    stream = StreamRawPredictRequest(endpoint=name, http_body={"data": given.text, "content_type": _JSON})
    yield call("stream raw predict with v2 JSON", stream, check_v2)
    large = given.large()
    yield call(f"raw predict with {len(large):,} bytes", raw(large), check_v2)
