"""The calls of Vertex AI's API: made with the SDK's clients, or printed without being made."""

from __future__ import annotations

import json
import re
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import google.auth
import requests
from google.api_core.exceptions import GoogleAPICallError, NotFound, RetryError
from google.api_core.operation import Operation
from google.api_core.operations_v1 import AbstractOperationsClient, OperationsRestTransport
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import aiplatform_v1
from google.protobuf import json_format

from trident.adapters.common.options import BadOption


class CallFailed(Exception):
    """A call was refused or not answered, or its answer is wrong; the argument says why, for a person."""


class Reply(NamedTuple):
    """The response to a call through an endpoint. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


_SERVICE = re.compile(r"google\.cloud\.aiplatform_v1\.types\.(\w+)_service")
_WORD = re.compile(r"(?<!^)(?=[A-Z])")
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_GET_OPERATION = "google.longrunning.Operations.GetOperation"
_HINTS = {
    401: "gcloud auth application-default login",
    403: "the account needs roles/aiplatform.user, and roles/iam.serviceAccountUser on the service account",
    409: "the resource exists already, or another operation on it is running",
    429: "the quota of the project in this location is exhausted, or no such machines are available now",
}
_NO_CREDENTIALS = "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS with the path of a key file"
_SHOWN_BYTES = 400


class Vertex:
    """Makes the calls of an action and prints their progress; with `is_dry` it prints the calls.

    http:// is for emulators: it gets no credentials. `sleep` takes seconds.
    """

    def __init__(
        self,
        options: Namespace,
        out: TextIO,
        now: datetime,
        *,
        is_dry: bool,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.place = f"projects/{options.project}/locations/{options.location}"
        self.address: str = options.api_endpoint.rstrip("/") or f"https://{options.location}-aiplatform.googleapis.com"
        if "://" not in self.address:  # that of an emulator has a port
            self.address = f"{'http' if ':' in self.address else 'https'}://{self.address}"
        self.now = now
        self.is_dry = is_dry
        self.failures = 0
        """The number of failed best-effort calls."""
        self._settings = _settings(options.settings) if options.settings else {}
        self._limit_s: float = options.timeout_secs
        self._out = out
        self._sleep = sleep
        self._clients: dict[str, Any] = {}

    def call(
        self,
        title: str,
        request: Any,
        *,
        stand_in: Any = None,
        report: Callable[[Any], str] = lambda answer: "",
        best_effort: bool = False,
        after_s: float = 0.0,
    ) -> Any:
        """The answer to a message of google.cloud.aiplatform_v1; for a long-running operation its result.

        In a dry run it is `stand_in`. `report` returns what to print about it. `best_effort`: a failure is counted, not
        raised, and the answer is None. Raises CallFailed.
        """
        kind = type(request)
        rpc = kind.__name__.removesuffix("Request")
        found = _SERVICE.fullmatch(kind.__module__)
        assert found is not None
        service = "".join(word.capitalize() for word in found[1].split("_")) + "Service"
        try:
            json_format.ParseDict(self._settings.get(rpc, {}), kind.pb(request))
        except json_format.ParseError as error:
            raise BadOption.of("--settings", f"{rpc}: {error}") from None
        if self.is_dry:
            text = json.dumps(json_format.MessageToDict(kind.pb(request)), indent=2, ensure_ascii=False, sort_keys=True)
            wait = f"# after {after_s:g} s\n" if after_s else ""
            print(f"# {title}\n{wait}{service}.{rpc} {text}\n", file=self._out)
            return stand_in

        def ask() -> Any:
            answer = getattr(self._client(service), _WORD.sub("_", rpc).lower())(request=request)
            if isinstance(answer, Operation):
                return answer.result(timeout=self._limit_s)
            # The pages of a list can be iterated only once.
            return list(answer) if hasattr(answer, "pages") else answer

        if after_s:
            self._sleep(after_s)
        return self._made(title, ask, report, best_effort)

    def post(
        self,
        title: str,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        report: Callable[[Reply], str],
        *,
        is_private: bool = False,
    ) -> None:
        """A call through an endpoint, as the SDK's own `Endpoint` makes it; a failure is counted.

        `is_private`: the host is an address in the caller's network, which the certificate does not cover.
        """
        if self.is_dry:
            text = body[:_SHOWN_BYTES].decode(errors="replace") if b"\0" not in body else ""
            shown = text if len(text) == len(body) else f"{text}<{len(body)} bytes in all>"
            lines = [f"# {title}", f"POST {url}", *(f"{name}: {value}" for name, value in headers.items()), shown]
            print("\n".join(lines), end="\n\n", file=self._out)
            return

        def ask() -> Reply:
            answer = self._session.post(url, data=body, headers=headers, timeout=self._limit_s, verify=not is_private)
            return Reply(answer.status_code, {k.lower(): text for k, text in answer.headers.items()}, answer.content)

        self._made(title, ask, report, best_effort=True)

    def _made(self, title: str, ask: Callable[[], Any], report: Callable[[Any], str], best_effort: bool) -> Any:
        print(f"{title} ...", file=self._out, flush=True)
        try:
            try:
                answer = ask()
            except NotFound as error:
                if best_effort:
                    self._say(f"it no longer exists: {error.message}")
                    return None
                raise CallFailed(_text(error)) from error
            except (GoogleAPICallError, RetryError) as error:
                raise CallFailed(_text(error)) from error
            except GoogleAuthError as error:
                raise CallFailed(f"{error}\n{_NO_CREDENTIALS}") from error
            except (requests.RequestException, TimeoutError) as error:
                raise CallFailed(str(error)) from error
            self._say(report(answer))
        except CallFailed as error:
            if not best_effort:
                raise
            self.failures += 1
            self._say(f"FAILED: {error}")
            return None
        return answer

    def _say(self, text: str) -> None:
        for line in text.splitlines():
            print(f"  {line}", file=self._out, flush=True)

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            kind = getattr(aiplatform_v1, f"{service}Client")
            self._clients[service] = kind(transport=_transport(kind, self.address, self._credentials))
        return self._clients[service]

    @cached_property
    def _credentials(self) -> Any:
        if self.address.startswith("http://"):
            return AnonymousCredentials()
        found, _ = google.auth.default(scopes=[_SCOPE])
        return found

    @cached_property
    def _session(self) -> requests.Session:
        return requests.Session() if self.address.startswith("http://") else AuthorizedSession(self._credentials)

    def endpoint(self, text: str) -> str:
        """The resource name of an endpoint; `text` is its id or its resource name."""
        return self._child("endpoint", text)

    def model(self, text: str) -> str:
        """The resource name of a model, with an optional `@VERSION` or `@ALIAS`."""
        return self._child("model", text)

    def _child(self, kind: str, text: str) -> str:
        start = f"{self.place}/{kind}s/"
        # The platform's answers name the project by its number.
        identity = re.sub(rf"^projects/[^/]+/locations/[^/]+/{kind}s/", "", text)
        if not re.fullmatch(r"[\w-]+(@[\w-]+)?", identity):
            raise BadOption.of(f"--{kind}", f"it takes an id, or a name that begins with {start}, not '{text}'")
        return start + identity


def _settings(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        unknown = [rpc for rpc in document if not hasattr(aiplatform_v1, f"{rpc}Request")]
    except (OSError, ValueError) as error:
        raise BadOption.of("--settings", f"{path}: {error}") from None
    if unknown:
        raise BadOption.of("--settings", f"{path} names '{unknown[0]}'; it takes calls, such as UploadModel")
    return document


def _transport(kind: Any, address: str, credentials: Any) -> Any:
    """The SDK's REST transport, except that it polls operations at /v1/: the SDK uses /ui/, which is undocumented."""
    names = ("projects/*/locations/*/operations/*", "projects/*/locations/*/*/*/operations/*")
    options = {_GET_OPERATION: [{"method": "get", "uri": f"/v1/{{name={name}}}"} for name in names]}
    operations = OperationsRestTransport(host=address, credentials=credentials, http_options=options, path_prefix="v1")
    made = type(
        "Transport",
        (kind.get_transport_class("rest"),),
        {"operations_client": AbstractOperationsClient(transport=operations)},
    )
    return made(host=address, credentials=credentials)


def _text(error: Any) -> str:
    hint = _HINTS.get(getattr(error, "code", 0) or 0, "")
    return f"{error.message}\n{hint}" if hint else str(error.message)


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping. Raises BadOption for a text without `=` and for a repeated name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadOption.of(flag, f"it takes NAME=VALUE, not '{text}'")
        if name in found:
            raise BadOption.of(flag, f"'{name}' is given twice")
        found[name] = value
    return found
