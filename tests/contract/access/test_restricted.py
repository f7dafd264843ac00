"""Every group of restricted APIs, each with its own key, on both protocols.

Source: docs/spec/http.md section 2, docs/spec/grpc.md section 2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.contract.grpc.grpc_requests import rpc_refusal, stub_of
from tests.contract.servers.server import ServerProcess
from trident.core.frontend.access import GROUPS
from trident.core.http.routes import ROUTES

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

# A request to each route of each group.
HTTP = {
    "health": ["GET /v2/health/live", "GET /v2/models/simple/ready"],
    "metadata": ["GET /v2", "GET /v2/models/simple"],
    "inference": [
        "POST /v2/models/simple/infer",
        "POST /v2/models/simple/generate",
        "POST /v2/models/simple/generate_stream",
    ],
    "shared-memory": [
        f"{method} /v2/{kind}sharedmemory/{action}"
        for kind in ("system", "cuda")
        for method, action in (("GET", "status"), ("POST", "region/r/register"), ("POST", "unregister"))
    ],
    "model-config": ["GET /v2/models/simple/config"],
    "model-repository": [
        "POST /v2/repository/index",
        "POST /v2/repository/models/simple/load",
        "POST /v2/repository/models/simple/unload",
    ],
    "statistics": ["GET /v2/models/stats", "GET /v2/models/simple/stats"],
    "trace": ["GET /v2/trace/setting", "POST /v2/trace/setting", "GET /v2/models/simple/trace/setting"],
    "logging": ["GET /v2/logging", "POST /v2/logging"],
}
SIMPLE = {"name": "simple"}
GRPC: dict[str, dict[str, dict[str, str]]] = {
    "health": {"ServerLive": {}, "ModelReady": SIMPLE},
    "metadata": {"ServerMetadata": {}, "ModelMetadata": SIMPLE},
    "inference": {"ModelInfer": {"model_name": "simple"}},
    "shared-memory": {
        f"{kind}SharedMemory{action}": {"name": "r"} if action == "Register" else {}
        for kind in ("System", "Cuda")
        for action in ("Status", "Register", "Unregister")
    },
    "model-config": {"ModelConfig": SIMPLE},
    "model-repository": {
        "RepositoryIndex": {},
        "RepositoryModelLoad": {"model_name": "simple"},
        "RepositoryModelUnload": {"model_name": "simple"},
    },
    "statistics": {"ModelStatistics": {}},
    "trace": {"TraceSetting": {}},
    "logging": {"LogSettings": {}},
}


@pytest.fixture(scope="module")
def server(
    http_workers: str, shipped_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("restricted") / "log"
    options = [f"--http-restricted-api={group}:{group}-key={group}-value" for group in GROUPS if group != "health"]
    options += [f"--grpc-restricted-protocol={group}:{group}-key={group}-value" for group in GROUPS]
    with ServerProcess(shipped_models, log, "--shutdown-grace-secs=0", *options) as running:
        yield running


def outcome(call: Any, message: Any, metadata: Any) -> str:
    """The answer, or the text of the refusal."""
    try:
        return str(call(message, metadata=metadata))
    except grpc.RpcError as error:
        return str(error)


def test_every_group_has_a_request_to_test() -> None:
    assert set(HTTP) == set(GRPC) == set(GROUPS) == {route.group for route in ROUTES}


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "health"])
def test_route_group_accepts_only_its_own_key(group: str, server: ServerProcess) -> None:
    other = next(each for each in GROUPS if each != group)
    for line in HTTP[group]:
        method, path = line.split()
        body = b"{}" if method == "POST" else None
        for headers in ({}, {f"{group}-key": f"{other}-value"}, {f"{other}-key": f"{other}-value"}):
            status, found, answer = server.request(method, path, body, headers)
            assert (status, found["Content-Type"]) == (403, "text/plain"), line
            assert json.loads(answer) == {"error": f"This API is restricted, expecting header '{group}-key'"}
        assert server.request(method, path, body, {f"{group.upper()}-KEY": f"{group}-value"})[0] != 403, line


@pytest.mark.parametrize("group", GROUPS)
def test_call_group_accepts_only_its_own_key(group: str, server: ServerProcess) -> None:
    key = f"triton-grpc-protocol-{group}-key"
    with stub_of(server) as stub:
        for name, fields in GRPC[group].items():
            call, message = getattr(stub, name), getattr(pb, f"{name}Request")(**fields)
            for metadata in ((), ((key, "other"),), ((f"{group}-key", f"{group}-value"),)):
                refusal = rpc_refusal(call, message, metadata=metadata)
                assert refusal[:2] == ("UNAVAILABLE", f"This protocol is restricted, expecting header '{key}'"), name
            assert "restricted" not in outcome(call, message, ((key, f"{group}-value"),)), name
