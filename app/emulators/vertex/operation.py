"""The operation of the API that a request calls.

Source: docs/spec/vertex.md section A3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from trident.app.emulators.vertex.direct import no_direct_predict
from trident.app.emulators.vertex.limits import Deployment, EndpointType, GoogleError, impossible


class Verb(StrEnum):
    """The operations that callers reach over HTTP."""

    PREDICT = "predict"
    RAW_PREDICT = "rawPredict"
    STREAM_RAW_PREDICT = "streamRawPredict"
    EXPLAIN = "explain"
    DIRECT_RAW_PREDICT = "directRawPredict"
    INVOKE = "invoke"


_PATH = re.compile(
    r"/v1(?:beta1)?/projects/[^/:]+/locations/[^/:]+/endpoints/(?P<endpoint>[^/:]+)"
    r"(?::(?P<verb>[A-Za-z]+)|(?:/deployedModels/(?P<model>[^/:]+))?/invoke(?P<route>/.+))"
)
_FOR_PRODUCTS = ("directPredict", "streamDirectPredict", "streamingPredict")
_CALLS = (Verb.PREDICT, Verb.RAW_PREDICT, Verb.STREAM_RAW_PREDICT, Verb.EXPLAIN, Verb.DIRECT_RAW_PREDICT)
_PRINTABLE = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class Operation:
    """`route` is the container's path with its query, for `INVOKE`. `from_sdk`: the body is in the SDK's envelope."""

    verb: Verb
    route: str = ""
    from_sdk: bool = False


def addressed(target: str) -> tuple[str, str | None]:
    """The ids of the endpoint that a call is for, and of the deployed model if it names one. Raises GoogleError."""
    found = _PATH.fullmatch(target.partition("?")[0])
    if found is None or not _PRINTABLE.fullmatch(target):
        raise _unknown(target.partition("?")[0])
    return found["endpoint"], found["model"]


def read_operation(method: str, target: str, deployment: Deployment) -> Operation:
    """The operation of `target`, a path with its query. Raises GoogleError if `deployment` does not support it."""
    path, _, query = target.partition("?")
    found = _PATH.fullmatch(path)
    if found is None:
        raise _unknown(path)
    if found["route"] is not None:
        return _invocation(found["route"] + target[len(path) :], deployment)
    verb = _verb(found["verb"], path)
    if method != "POST":
        raise GoogleError(405, f"{verb} is called with POST")
    _check_possible(verb, deployment)
    # Generated clients send this, and expect the answer in the envelope.
    return Operation(verb, from_sdk="$alt=json" in query.replace("%24", "$"))


def _verb(text: str, path: str) -> Verb:
    if text in _FOR_PRODUCTS:
        raise no_direct_predict(text)
    for verb in _CALLS:
        if text == verb.value:
            return verb
    raise _unknown(path)


def _invocation(route: str, deployment: Deployment) -> Operation:
    if not deployment.is_invoked:
        raise impossible("invoke needs a model with an invoke route prefix: --invoke-route-prefix='/*'")
    return Operation(Verb.INVOKE, route)


def _check_possible(verb: Verb, deployment: Deployment) -> None:
    if deployment.is_invoked:
        raise impossible(f"{verb} is not available for a model with an invoke route prefix: call …/invoke/PATH")
    if verb is Verb.STREAM_RAW_PREDICT and deployment.endpoint_type is not EndpointType.DEDICATED:
        raise impossible("streamRawPredict of a custom model needs a dedicated endpoint")
    if verb is Verb.DIRECT_RAW_PREDICT and not deployment.grpc_port:
        raise impossible("a direct call needs a model whose container has grpcPorts: --grpc-port")


def _unknown(path: str) -> GoogleError:
    calls = ", ".join(f":{verb}" for verb in _CALLS)
    return GoogleError(
        404, f"'{path[:200]}' is not a call of the emulator: /v1/projects/…/locations/…/endpoints/…{calls}, /invoke/…"
    )
