"""The servers of SageMaker's benchmark, and the requests to them."""

from __future__ import annotations

import http.client
from pathlib import Path
from types import TracebackType

from bench.cases import Array, Case
from bench.servers.server import Server, resident_mb_of
from tests.contract.servers.ports import HOST
from tests.contract.servers.session import TRIDENT, session_members

ANSWER_LIMIT_S = 60.0
# Repeated here instead of imported: a client knows it from the specification.
BINARY_PREFIX = "application/vnd.sagemaker-triton.binary+json;json-header-size="


class BesidePlain(Server):
    """SageMaker's port beside plain HTTP's: two applications, one process, one engine."""

    def __init__(self, repository: Path, log: Path) -> None:
        command = [
            TRIDENT,
            "serve",
            "--platform=plain",
            f"--model-repository={repository}",
            f"--http-address={HOST}",
            "--http-port={port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--allow-sagemaker=true",
            "--sagemaker-port={spare_port}",
        ]
        super().__init__("trident", command, log)

    @property
    def sagemaker_port(self) -> int:
        return self.spare_port

    @property
    def invocations_url(self) -> str:
        return f"http://{HOST}:{self.sagemaker_port}/invocations"


class MultiModelServer(Server):
    """The container of a multi-model endpoint; `models_root` is the folder that the platform unpacks archives into."""

    ready_path = "/ping"

    def __init__(self, models_root: Path, log: Path) -> None:
        command = [
            TRIDENT,
            "serve",
            "--platform=sagemaker",
            f"--http-address={HOST}",
            "--sagemaker-port={port}",
            f"--sagemaker-models-root={models_root}",
        ]
        super().__init__("trident", command, log, {"SAGEMAKER_MULTI_MODEL": "true"})

    def resident_mb(self) -> float:
        """Of the process that has the models: with few models, the arbiter that started it is larger."""
        return max(map(resident_mb_of, set(session_members(self.process.pid)) - {self.process.pid}))


class Client:
    """One connection that stays open, as the platform's does. A context manager."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_LIMIT_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str, bytes]:
        """Send one request. Returns status, content type and body."""
        self._connection.request(method, path, body, headers or {})
        response = self._connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read()


def invocation(case: Case) -> tuple[bytes, dict[str, str]]:
    """The case's body with SageMaker's headers."""
    body, headers = case.body()
    json_size = headers.get("Inference-Header-Content-Length")
    return body, headers if json_size is None else {"Content-Type": f"{BINARY_PREFIX}{json_size}"}


def invoked(case: Case, answer: tuple[int, str, bytes]) -> dict[str, Array]:
    """Parse the outputs in an answer of `Client.ask`. RuntimeError if the answer is an error."""
    status, content_type, body = answer
    if status != 200:
        raise RuntimeError(f"an invocation is answered with {status}: {body[:300]!r}")
    is_binary = content_type.startswith(BINARY_PREFIX)
    return case.answer(body, content_type.removeprefix(BINARY_PREFIX) if is_binary else None)
