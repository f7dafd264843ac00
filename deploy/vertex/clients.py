"""Makes the calls of a plan with the SDK's clients."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import google.auth
import requests
from google.api_core.exceptions import GoogleAPICallError, NotFound, RetryError
from google.api_core.operation import Operation
from google.api_core.operations_v1 import AbstractOperationsClient, OperationsRestTransport
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import aiplatform_v1

from deploy.vertex.plan import Call, CallFailed, EndpointCall, NotThere, Reply

_GET_OPERATION = "google.longrunning.Operations.GetOperation"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_HINTS = {
    401: "gcloud auth application-default login",
    403: "the account needs roles/aiplatform.user, and roles/iam.serviceAccountUser on the service account",
    409: "the resource exists already, or another operation on it is running",
    429: "the quota of the project in this location is exhausted, or no such machines are available now",
}
_NO_CREDENTIALS = "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS with the path of a key file"


class Clients:
    """Makes calls of the API at `address`, which has a scheme. http:// is for emulators: it gets no credentials.

    `limit_s`: seconds that an operation may take.
    """

    def __init__(self, address: str, limit_s: float) -> None:
        self._address = address
        self._limit_s = limit_s
        self._made: dict[str, Any] = {}

    def make(self, call: Call) -> Any:
        """The answer; for a long-running operation its result. Raises CallFailed."""
        try:
            return self._post(call) if isinstance(call, EndpointCall) else self._ask(call)
        except NotFound as error:
            raise NotThere(_text(error)) from error
        except (GoogleAPICallError, RetryError) as error:
            raise CallFailed(_text(error)) from error
        except GoogleAuthError as error:
            raise CallFailed(f"{error}\n{_NO_CREDENTIALS}") from error
        except (requests.RequestException, TimeoutError) as error:
            raise CallFailed(str(error)) from error

    def _ask(self, call: Call) -> Any:
        answer = getattr(self._client(call.service), call.method)(request=call.request)
        if isinstance(answer, Operation):
            return answer.result(timeout=self._limit_s)
        # The pages of a list can be iterated only once.
        return list(answer) if hasattr(answer, "pages") else answer

    def _client(self, service: str) -> Any:
        if service not in self._made:
            kind = getattr(aiplatform_v1, f"{service}Client")
            self._made[service] = kind(transport=_transport(kind, self._address, self._credentials))
        return self._made[service]

    def _post(self, call: EndpointCall) -> Reply:
        answer = self._session.post(
            call.url, data=call.body, headers=call.all_headers, timeout=self._limit_s, verify=not call.private
        )
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Reply(answer.status_code, headers, answer.content)

    @cached_property
    def _credentials(self) -> Any:
        if self._address.startswith("http://"):
            return AnonymousCredentials()
        found, _ = google.auth.default(scopes=[_SCOPE])
        return found

    @cached_property
    def _session(self) -> requests.Session:
        if self._address.startswith("http://"):
            return requests.Session()
        return AuthorizedSession(self._credentials)


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
