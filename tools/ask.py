"""Calls of a server that runs, for the commands that ask one. Any server of Triton's protocol will do."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from trident.adapters.common.options import BadOption
from trident.app.process.environment import process_environment
from trident.app.terminal import counted
from trident.core.errors import ModelNotReady

if TYPE_CHECKING:
    from trident.core.config.schema import ModelConfig
    from trident.core.config.spec import ModelSpec

_TIMEOUT_S = 5.0
_LARGEST_ANSWER = 64 << 20
# What OpenSSL makes of the answer in HTTP to the start of TLS.
_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
OK = 200
DENIED = (401, 403)
TOKEN = "TOKEN"
"""The environment variable with the token of a server that wants one."""


class NoAnswer(Exception):
    """Nothing that speaks HTTP answered; the argument says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`seconds` is the time from the call to the end of the answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    seconds: float

    @property
    def document(self) -> Any:
        """The body as JSON; None if it is something else."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def fields(self) -> Mapping[str, Any]:
        """The body as a JSON object; empty if it is something else."""
        found = self.document
        return found if isinstance(found, dict) else {}

    @property
    def found(self) -> Mapping[str, Any]:
        """The JSON object of a success; empty without one."""
        return self.fields if self.status == OK else {}

    @property
    def refusal(self) -> str:
        if self.status in DENIED:
            return f"it is not open to callers without a token or a key (HTTP {self.status})"
        text, hint = self.fields.get("error", ""), self.fields.get("hint", "")
        return f"HTTP {self.status}{f': {text}' if text else ''}{f' ({hint})' if hint else ''}"


Ask = Callable[[str, str], Answer]


def ask(method: str, url: str) -> Answer:
    """Call a server once, with the token if there is one. Raises NoAnswer."""
    began = time.monotonic()
    token = process_environment().get(TOKEN)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = Request(url, method=method, data=b"{}" if method == "POST" else None, headers=headers)
        with urlopen(request, timeout=_TIMEOUT_S) as found:
            body = found.read(_LARGEST_ANSWER)
            return Answer(found.status, body, dict(found.headers), time.monotonic() - began)
    except HTTPError as error:
        with error:
            return Answer(error.code, error.read(_LARGEST_ANSWER), dict(error.headers), time.monotonic() - began)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoAnswer(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Why nothing answered in HTTP."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLError) and reason.reason in _PLAIN:
        return "this port speaks HTTP without TLS: begin the address with http://"
    if isinstance(error, http.client.BadStatusLine) and "\0" in str(error):
        return "this port speaks HTTP/2, as that of gRPC does: the HTTP port is 8000 by default"
    return str(reason) or type(error).__name__


def model_path(model: str, version: str) -> str:
    return f"/v2/models/{quote(model, safe='')}{f'/versions/{version}' if version else ''}"


def model_config(url: str, model: str, version: str, ask: Ask = ask) -> ModelConfig:
    """The configuration of a model as the server at `url` has completed it. Raises ModelNotReady."""
    # It takes a while to import.
    from google.protobuf.json_format import Parse, ParseError

    from trident.core.config.schema import ModelConfig

    place = f"{url}{model_path(model, version)}/config"
    try:
        found = ask("GET", place)
        if found.status != OK:
            raise ModelNotReady(f"{place}: {found.refusal}")
        # A later Triton's configuration may have fields that this version does not know.
        config = Parse(found.body, ModelConfig(), ignore_unknown_fields=True)
        if not config.name:
            raise ParseError("it has no name")
        return config
    except NoAnswer as error:
        cure = "start it, or name its address: trident request MODEL URL, trident bench MODEL --url=URL"
        raise ModelNotReady(f"no server answers at {url}: {error}", hint=cure) from None
    except ParseError as error:
        cure = "name the port with the v2 routes (--v2-url of bench)"
        raise ModelNotReady(f"{place} is not a model configuration: {error}", hint=cure) from None


def spec_of(config: ModelConfig, version: str, url: str) -> ModelSpec:
    """A model of the server at `url` by its configuration. Raises ModelNotReady."""
    from trident.core.config.resolve import resolve_model_spec

    try:
        return resolve_model_spec(config, int(version or 0), {})
    except (KeyError, ValueError) as error:
        text = f"the configuration of '{config.name}' at {url} is not a model configuration: {error}"
        raise ModelNotReady(text) from None


DEFAULT_URL = "http://localhost:8000"


def server_url(words: Sequence[str]) -> str:
    """The address of the HTTP port that is the only one of `words`, or the default. Raises BadOption."""
    url = with_scheme(words[0]) if words else DEFAULT_URL
    if len(words) > 1 or not url.startswith(("http://", "https://")):
        raise BadOption(f"one address of an HTTP port is expected, such as {DEFAULT_URL}, not '{words[-1]}'")
    return url.rstrip("/")


def with_scheme(url: str) -> str:
    """`url`, which may be HOST:PORT."""
    return url if "://" in url else f"http://{url}"


class Readiness(NamedTuple):
    """What the route of readiness tells. `loaded` is a text; `failures` are reasons by model."""

    phase: str
    loaded: str
    failures: Mapping[str, str]


def readiness(answer: Answer) -> Readiness:
    body = answer.fields
    loaded = f"{body['loaded']} of {body['total']} models loaded" if {"loaded", "total"} <= body.keys() else ""
    return Readiness(str(body.get("phase") or ""), loaded, dict(body.get("failures") or {}))


def long_executions(models: Iterable[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], str]]:
    """The versions in which an execution has run for long, of the items of `model_stats`, and what to say of it."""
    for model in models:
        running = model.get("long_execution")
        if running:
            waiting = running.get("pending_count", 0)
            text = f"an execution has run for {running['ns'] / 1e9:.0f} s"
            if waiting:
                text += f"; {counted(waiting, 'request')} {'waits' if waiting == 1 else 'wait'} behind it"
            yield (model["name"], str(model.get("version", ""))), text
