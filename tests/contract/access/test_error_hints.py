"""`--error-hints` at every port: hints for clients that show only the text of an error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
import tritonclient.grpc as triton

from tests.contract.grpc.grpc_requests import Responses, address_of, rpc_refusal, simple_inputs, simple_message, stub_of
from tests.contract.servers.ports import free_ports
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import PATH, good_document, link_models

pytestmark = pytest.mark.slow


class Ports(NamedTuple):
    server: ServerProcess
    http: int
    sagemaker: int
    vertex: int


@pytest.fixture(scope="module")
def ports(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    folder = tmp_path_factory.mktemp("hints")
    sagemaker, vertex = free_ports(2)
    options = (
        "--error-hints=text",
        "--shutdown-grace-secs=0",
        "--allow-sagemaker=true",
        f"--sagemaker-port={sagemaker}",
        "--allow-vertex-ai=true",
        f"--vertex-ai-port={vertex}",
        "--vertex-ai-default-model=simple",
    )
    with ServerProcess(link_models(folder / "models", "simple"), folder / "log", *options) as server:
        yield Ports(server, server.http_port, sagemaker, vertex)


def http_text(port: str, path: str, ports: Ports) -> str:
    body = json.dumps({**good_document(), "outputs": [{"name": "OTHER"}]}).encode()
    document = json.loads(ports.server.request("POST", path, body, port=getattr(ports, port))[2])
    assert list(document) == ["error"]
    return str(document["error"])


def grpc_text(ports: Ports) -> str:
    with stub_of(ports.server) as stub:
        return rpc_refusal(stub.ModelInfer, simple_message(outputs=[{"name": "OTHER"}]))[1]


def stream_text(ports: Ports) -> str:
    answers = Responses()
    with triton.InferenceServerClient(address_of(ports.server)) as client:
        client.start_stream(answers.put)
        client.async_stream_infer("simple", simple_inputs(), outputs=[triton.InferRequestedOutput("OTHER")])
        return str(answers.next_error())


@pytest.mark.parametrize(
    "ask",
    [
        partial(http_text, "http", PATH),
        grpc_text,
        stream_text,
        partial(http_text, "sagemaker", "/invocations"),
        partial(http_text, "vertex", "/v1/endpoints/0/deployedModels/0:predict"),
    ],
    ids=["http", "grpc", "stream", "sagemaker", "vertex"],
)
def test_error_text_ends_with_the_hint_on_request(ports: Ports, ask: Callable[[Ports], str]) -> None:
    text = ask(ports)
    assert "unexpected inference output 'OTHER' for model 'simple'" in text
    assert text.endswith("(hint: the outputs are: OUTPUT0, OUTPUT1)"), text
