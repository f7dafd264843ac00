"""Bearer tokens on a real server: both protocols, rotation, and nothing of them in the log.

Source: docs/spec/server-options.md "In Trident"; RFC 6750.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from tests.contract.grpc.grpc_requests import assert_simple, rpc_refusal, simple_inputs, stub_of
from tests.contract.servers.processes import from_each
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import PATH, good_document
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

FIRST, SECOND, WRONG = "first-token-0123", "second-token-0123", "wrong-token-0123"
BODY = json.dumps(good_document()).encode()
LOUD = ("--log-verbose=3", "--log-access=all", "--http-header-forward-pattern=.*", "--grpc-header-forward-pattern=.*")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


class Guarded:
    """A server with a token file."""

    def __init__(self, server: ServerProcess, file: Path) -> None:
        self.server = server
        self.file = file

    def infer(self, token: str) -> int:
        return self.server.request("POST", PATH, BODY, bearer(token))[0]

    def settles(self, *wanted: int) -> bool:
        """True once every front end answers FIRST and SECOND with these statuses."""
        answers = from_each(self.server, lambda: [self.infer(FIRST), self.infer(SECOND)])
        return all(each == list(wanted) for each in answers)


@pytest.fixture
def guarded(http_workers: str, shipped_models: Path, tmp_path: Path) -> Iterator[Guarded]:
    file = tmp_path / "tokens"
    file.write_text(FIRST)
    file.chmod(0o600)
    options = ("--shutdown-grace-secs=0", f"--auth-token-file={file}", *LOUD)
    with ServerProcess(shipped_models, tmp_path / "log", *options) as server:
        yield Guarded(server, file)
    text = server.log_text()
    assert not [token for token in (FIRST, SECOND, WRONG) if token in text]


def test_valid_token_is_required_and_changed_token_file_is_read(guarded: Guarded) -> None:
    server = guarded.server
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/simple/ready"):
        assert server.request("GET", path)[0] == 200
    assert server.request("GET", "/metrics", port=server.metrics_port)[0] == 200
    for method, path in (("GET", "/v2"), ("POST", PATH), ("GET", "/v2/models/stats"), ("POST", "/v2/logging")):
        status, headers, answer = server.request(method, path, BODY if method == "POST" else None)
        assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="trident"')
        assert json.loads(answer)["error"] == "a bearer token is required"
    status, headers, answer = server.request("POST", "/v1/completions", b"{}")
    assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="trident"')
    refusal = {"message": "a bearer token is required", "type": "authentication_error", "param": None, "code": None}
    told = json.loads(answer)["error"]
    assert told.pop("hint").startswith("send the header 'Authorization: Bearer <token>'")
    assert told == refusal
    status, headers, _ = server.request("GET", "/v2", None, bearer(WRONG))
    assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="trident", error="invalid_token"')
    with tritonclient.http.InferenceServerClient(server.address) as client:
        assert client.get_server_metadata(headers=bearer(FIRST))["name"] == "triton"
        with pytest.raises(InferenceServerException, match=r"\[401\] a bearer token is required"):
            client.get_server_metadata()
    with stub_of(server) as stub:
        assert stub.ServerReady(pb.ServerReadyRequest()).ready
        call, message = stub.ServerMetadata, pb.ServerMetadataRequest()
        assert rpc_refusal(call, message) == ("UNAUTHENTICATED", "a bearer token is required")
        wrong = tuple(bearer(WRONG).items())
        assert rpc_refusal(call, message, metadata=wrong) == ("UNAUTHENTICATED", "the bearer token is not accepted")
    # The same connection, whose heads are remembered, before and after the change.
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        assert_simple(client.infer("simple", simple_inputs(), headers=bearer(FIRST)))
        guarded.file.write_text(f"{FIRST}\n{SECOND}\n")
        until(lambda: guarded.settles(200, 200))
        guarded.file.write_text(f"# {FIRST}\n{SECOND}\n")
        until(lambda: guarded.settles(401, 200))

        def refusal_of_connection() -> str:
            # Its front end may be the last one to read the file.
            try:
                client.infer("simple", simple_inputs(), headers=bearer(FIRST))
            except InferenceServerException as error:
                return str(error.message())
            return ""

        until(lambda: refusal_of_connection() == "the bearer token is not accepted")
        assert_simple(client.infer("simple", simple_inputs(), headers=bearer(SECOND)))
    guarded.file.write_text("")
    until(lambda: "it has no token; keeping the previous tokens" in server.log_text())
    assert guarded.settles(401, 200)


def test_admin_scope_requires_a_token_for_changes_only(http_workers: str, shipped_models: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(FIRST)
    options = ("--shutdown-grace-secs=0", f"--auth-token-file={file}", "--auth-token-scope=admin")
    with ServerProcess(shipped_models, tmp_path / "log", *options) as server:
        assert server.request("POST", PATH, BODY)[0] == 200
        for path in ("/v2/logging", "/v2/repository/index", "/v2/trace/setting", "/v2/systemsharedmemory/unregister"):
            assert server.request("POST", path, b"{}")[0] == 401, path
            assert server.request("POST", path, b"{}", bearer(FIRST))[0] != 401, path
        with contextlib.ExitStack() as stack:
            stub = stack.enter_context(stub_of(server))
            assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "triton"
            assert rpc_refusal(stub.LogSettings, pb.LogSettingsRequest())[0] == "UNAUTHENTICATED"
    until(lambda: f"every user of this machine can read the token file '{file}': use chmod 600" in server.log_text())
