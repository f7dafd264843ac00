"""One request of a plan: to the API of the location, or through an endpoint to the model behind it.

What a request is called comes from the type of its message, so that the two cannot differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf import json_format

_SERVICE = re.compile(r"google\.cloud\.aiplatform_v1\.types\.(\w+)_service")
_MAPS = frozenset({"labels", "trafficSplit"})
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


class CheckFailed(Exception):
    """An answer is not what it should be; the argument says how, for a person."""


class Reply(NamedTuple):
    """What came back of a call through an endpoint. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def _ordered(value: Any, name: str = "") -> Any:
    """The same with the keys of maps in order, which protobuf does not keep."""
    if isinstance(value, list):
        return [_ordered(each) for each in value]
    if not isinstance(value, dict):
        return value
    keys = sorted(value) if name in _MAPS else list(value)
    return {key: _ordered(value[key], key) for key in keys}


def _nothing(answer: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`request` is a message of google.cloud.aiplatform_v1. `title` says what the call is for.

    `stand_in` is what a dry run takes for the answer. `report` says what to tell of the answer, or raises CheckFailed.
    `best_effort`: what comes after it is done even if it fails. `after_s`: seconds to wait before it.
    """

    title: str
    request: Any
    stand_in: Any = None
    report: Callable[[Any], str] = field(default=_nothing)
    best_effort: bool = False
    after_s: float = 0.0

    @property
    def service(self) -> str:
        """For instance `ModelService`."""
        found = _SERVICE.fullmatch(type(self.request).__module__)
        assert found is not None
        return "".join(word.capitalize() for word in found[1].split("_")) + "Service"

    @property
    def rpc(self) -> str:
        """For instance `UploadModel`."""
        return type(self.request).__name__.removesuffix("Request")

    @property
    def method(self) -> str:
        """That of the SDK's client, for instance `upload_model`."""
        return _WORD.sub("_", self.rpc).lower()

    def document(self) -> dict[str, Any]:
        """The message in protobuf's JSON."""
        made: dict[str, Any] = _ordered(json_format.MessageToDict(type(self.request).pb(self.request)))
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCall(Call):
    """A call through an endpoint, over HTTP as the SDK's own `Endpoint` sends it; its answer is a Reply.

    `base` is the scheme and host. `headers` go with the body. `private`: the host has an address of the caller's own
    network, to which its certificate is not made out.
    """

    base: str
    headers: Mapping[str, str] = field(default_factory=dict)
    private: bool = False

    @property
    def url(self) -> str:
        return f"{self.base}/v1/{self.request.endpoint}:{self.rpc[0].lower()}{self.rpc[1:]}"

    @property
    def body(self) -> bytes:
        """What is sent: for `predict` the message in JSON, else the bytes that it holds."""
        if self.rpc != "Predict":
            held: bytes = self.request.http_body.data
            return held
        return json.dumps({name: value for name, value in self.document().items() if name != "endpoint"}).encode()

    @property
    def all_headers(self) -> dict[str, str]:
        """`headers`, and the body's content type."""
        content_type = "application/json" if self.rpc == "Predict" else self.request.http_body.content_type
        return {**self.headers, **({"Content-Type": content_type} if content_type else {})}
