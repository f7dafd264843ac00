"""How gRPC calls are counted and logged with front ends. Source: docs/spec/grpc.md sections 1 to 5."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.contract.grpc.grpc_requests import LIMIT_S, rpc_refusal, stub_of
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("grpc")
    repository = link_models(folder / "models", "simple")
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0", "--log-verbose=1") as running:
        yield running
        assert "Traceback" not in running.log_text()


def test_calls_are_counted_and_logged(server: ServerProcess) -> None:
    def counted(method: str, status: str) -> float:
        page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
        wanted = f'trident_grpc_responses_total{{method="{method}",status="{status}"}} '
        return sum(float(line.removeprefix(wanted)) for line in page.splitlines() if line.startswith(wanted))

    # With front ends the connections go to all of them, and each page shows the sum.
    for _ in range(4):
        with stub_of(server) as stub:
            stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=LIMIT_S)
            rpc_refusal(stub.ModelMetadata, pb.ModelMetadataRequest(name="nope"))
    until(lambda: counted("ServerMetadata", "OK") == 4)
    until(lambda: counted("ModelMetadata", "NOT_FOUND") == 4)
    until(lambda: "gRPC request: /inference.GRPCInferenceService/ServerMetadata" in server.log_text())
    until(lambda: "ModelMetadata: NOT_FOUND Request for unknown model: 'nope' is not found" in server.log_text())
