"""One call of a plan: to the API of the location, or through an endpoint to its model.

The names of service and method are derived from the type of the message, so that they always match.
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
    """An answer is wrong; the argument says how, for a person."""


class Reply(NamedTuple):
    """The response to a call through an endpoint. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def _ordered(value: Any, name: str = "") -> Any:
    """The value with the keys of its maps sorted, because protobuf does not keep their order."""
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
    """One call. `request` is a message of google.cloud.aiplatform_v1; `title` describes the call.

    `stand_in` replaces the answer in a dry run. `report` returns the text to print about the answer, or raises
    CheckFailed. `best_effort`: the plan continues if the call fails. `after_s`: seconds to wait before the call.
    """

    title: str
    request: Any
    stand_in: Any = None
    report: Callable[[Any], str] = field(default=_nothing)
    best_effort: bool = False
    after_s: float = 0.0

    @property
    def service(self) -> str:
        """The name of the service, such as `ModelService`."""
        found = _SERVICE.fullmatch(type(self.request).__module__)
        assert found is not None
        return "".join(word.capitalize() for word in found[1].split("_")) + "Service"

    @property
    def rpc(self) -> str:
        """The name of the RPC, such as `UploadModel`."""
        return type(self.request).__name__.removesuffix("Request")

    @property
    def method(self) -> str:
        """The method of the SDK's client, such as `upload_model`."""
        return _WORD.sub("_", self.rpc).lower()

    def document(self) -> dict[str, Any]:
        """The message as protobuf's JSON."""
        made: dict[str, Any] = _ordered(json_format.MessageToDict(type(self.request).pb(self.request)))
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCall(Call):
    """A call through an endpoint, over HTTP, as the SDK's own `Endpoint` makes it; its answer is a Reply.

    `base` is the scheme and the host. `private`: the host is an address in the caller's network, which the certificate
    does not cover.
    """

    base: str
    headers: Mapping[str, str] = field(default_factory=dict)
    private: bool = False

    @property
    def url(self) -> str:
        return f"{self.base}/v1/{self.request.endpoint}:{self.rpc[0].lower()}{self.rpc[1:]}"

    @property
    def body(self) -> bytes:
        """The body: the message as JSON for `predict`, otherwise the bytes in the message."""
        if self.rpc != "Predict":
            held: bytes = self.request.http_body.data
            return held
        return json.dumps({name: value for name, value in self.document().items() if name != "endpoint"}).encode()

    @property
    def all_headers(self) -> dict[str, str]:
        """`headers` and the content type of the body."""
        content_type = "application/json" if self.rpc == "Predict" else self.request.http_body.content_type
        return {**self.headers, **({"Content-Type": content_type} if content_type else {})}
