"""The plan of an action: its calls in order, to be printed or made.

A plan is a generator. It yields a call and receives the answer, which later calls may need. If no calls are made, it
receives each call's stand-in, so that the same code produces the printed and the applied plan.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TextIO

from google.protobuf import json_format

from trident.adapters.common.options import BadOption

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


Steps = Generator[Call, Any, None]


class CallFailed(Exception):
    """A call was refused or not answered; the argument says why, for a person."""


class NotThere(CallFailed):
    """The subject of the call does not exist."""


class Plan:
    """A plan, which can be used once: both methods run `steps`."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def calls(self) -> list[Call]:
        """All calls, without making them."""
        found: list[Call] = []
        try:
            call = next(self._steps)
            while True:
                found.append(call)
                call = self._steps.send(call.stand_in)
        except StopIteration:
            return found

    def apply(self, make: Callable[[Call], Any], out: TextIO, sleep: Callable[[float], None]) -> int:
        """Make the calls and print a line for each. Returns the number of failed best-effort calls.

        `make` returns the answer to a call, for a long-running operation its result, or raises CallFailed.

        Raises CallFailed or CheckFailed for the first other failure and makes no further calls.
        """
        failed = 0
        try:
            call = next(self._steps)
            while True:
                if call.after_s:
                    sleep(call.after_s)
                print(f"{call.title} ...", file=out, flush=True)
                answer, fault = self._made(call, make, out)
                failed += fault
                call = self._steps.send(answer)
        except StopIteration:
            return failed

    def _made(self, call: Call, make: Callable[[Call], Any], out: TextIO) -> tuple[Any, bool]:
        """The answer and whether the call failed; the answer is None if a best-effort call has none."""
        try:
            answer = make(call)
            _print(call.report(answer), out)
            return answer, False
        except NotThere as error:
            if not call.best_effort:
                raise
            _print(f"it no longer exists: {error}", out)
            return None, False
        except (CallFailed, CheckFailed) as error:
            if not call.best_effort:
                raise
            _print(f"FAILED: {error}", out)
            return None, True


def _print(text: str, out: TextIO) -> None:
    for line in text.splitlines():
        print(f"  {line}", file=out, flush=True)


_WIDTH = 110
_LONGEST = 400
_INDENT = "  "


def shown(call: Call) -> str:
    """The call with its message as JSON; long and binary contents are abbreviated."""
    document = call.document()
    lines = [f"# {call.title}"]
    if call.after_s:
        lines.append(f"# after {call.after_s:g} s")
    if call.best_effort:
        lines.append("# best effort: the plan continues if it fails")
    if isinstance(call, EndpointCall):
        lines.append(f"# POST {call.url}")
        lines += [f"# {name}: {value}" for name, value in call.headers.items()]
        if "httpBody" in document:
            document["httpBody"]["data"] = _content(document["httpBody"].get("data", ""))
    lines.append(f"{call.service}.{call.rpc} {laid_out(document)}")
    return "\n".join(lines)


def laid_out(value: Any, indent: str = "") -> str:
    """Indented JSON, in which every value that fits is on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= _WIDTH or not isinstance(value, dict | list) or _is_plain(value):
        return flat
    inner = indent + _INDENT
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {laid_out(each, inner)}" for name, each in value.items()]
    else:
        parts = [laid_out(each, inner) for each in value]
    start, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return start + "\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}{end}"


def _is_plain(value: Any) -> bool:
    """Whether a value is a list of numbers, which need not be on separate lines."""
    return isinstance(value, list) and not any(isinstance(each, dict | list | str) for each in value)


def _content(encoded: str) -> str:
    """The beginning of a text, or the number of other bytes."""
    content = base64.b64decode(encoded)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"<{len(content)} bytes>"
    if "\0" in text:
        return f"<{len(content)} bytes>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}<{len(content)} bytes in all>"


_LOCATION = re.compile(r"[a-z]+(?:-[a-z0-9]+)+")
_PROJECT = re.compile(r"[a-z0-9][a-z0-9.:-]*")
# Source: the fields `model_id` of UploadModelRequest and `endpoint_id` of CreateEndpointRequest.
_MODEL_ID = re.compile(r"[a-z_][a-z0-9_-]{0,62}")
_ENDPOINT_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,8}")
_VERSION = re.compile(r"[0-9]+|[a-z][a-z0-9-]{0,126}[a-z0-9]")
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Place:
    """A location of a project. Raises BadOption for an invalid project or location (`us-central1`)."""

    project: str
    location: str

    def __post_init__(self) -> None:
        if not _PROJECT.fullmatch(self.project):
            raise BadOption.of("--project", f"it takes a project's id or number, not '{self.project}'")
        if not _LOCATION.fullmatch(self.location):
            raise BadOption.of("--location", f"it takes a location such as us-central1, not '{self.location}'")

    @property
    def name(self) -> str:
        """The resource name of the location, the parent of all other resources."""
        return f"projects/{self.project}/locations/{self.location}"

    @property
    def host(self) -> str:
        """The host of the location's API."""
        return f"{self.location}-aiplatform.googleapis.com"

    def endpoint(self, text: str) -> str:
        """The resource name of an endpoint; `text` is its id or its resource name. Raises BadOption."""
        return self._child("endpoint", text)

    def model(self, text: str) -> str:
        """The resource name of a model, with an optional `@VERSION` or `@ALIAS`. Raises BadOption."""
        name, at, version = text.partition("@")
        if at and not _VERSION.fullmatch(version):
            raise BadOption.of("--model", f"'{version}' is not a version; it takes ID, ID@3 or ID@an-alias")
        return f"{self._child('model', name)}{at}{version}"

    def _child(self, kind: str, text: str) -> str:
        start = f"{self.name}/{kind}s/"
        # The platform's answers name the project by its number.
        numbered = re.compile(rf"projects/[0-9]+/locations/{self.location}/{kind}s/")
        identity = numbered.sub("", text.removeprefix(start), count=1)
        if not _NAME.fullmatch(identity):
            raise BadOption.of(f"--{kind}", f"it takes an id, or a name that begins with {start}, not '{text}'")
        return start + identity


class Context(NamedTuple):
    """The inputs of an action beside its options. `api` is the address of the API, with its scheme."""

    place: Place
    api: str
    now: datetime


def new_model_id(text: str) -> str:
    """`text` as the id of a new model. Raises BadOption."""
    if not _MODEL_ID.fullmatch(text):
        raise BadOption.of(
            "--model-id", f"it takes up to 63 of a-z, 0-9, - and _, the first a letter or _, not '{text}'"
        )
    return text


def new_endpoint_id(text: str) -> str:
    """`text` as the id of a new endpoint. Raises BadOption."""
    if not _ENDPOINT_ID.fullmatch(text):
        raise BadOption.of(
            "--endpoint",
            f"a new one takes up to 63 of a-z, 0-9 and -, the first a letter, or up to 9 digits, not '{text}'",
        )
    return text
