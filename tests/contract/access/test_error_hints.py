"""`--error-hints` at every port: what clients that show only the text of an error learn of its cure."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.contract.grpc.grpc_requests import LIMIT_S, Responses, address_of
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models

pytestmark = pytest.mark.slow

CURE = "(hint: the outputs are: OUTPUT0, OUTPUT1)"


class Ports:
    def __init__(self, server: ServerProcess, sagemaker: int, vertex: int) -> None:
        self.server, self.sagemaker, self.vertex = server, sagemaker, vertex


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
        yield Ports(server, sagemaker, vertex)


def inputs(client: Any) -> list[Any]:
    given = [client.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in given:
        each.set_data_from_numpy(np.zeros((1, 16), np.int32))
    return given


def http_text(ports: Ports) -> str:
    outputs = [http_client.InferRequestedOutput("OTHER")]
    with (
        http_client.InferenceServerClient(ports.server.address) as client,
        pytest.raises(InferenceServerException) as refused,
    ):
        client.infer("simple", inputs(http_client), outputs=outputs)
    return str(refused.value)


def grpc_text(ports: Ports) -> str:
    outputs = [grpc_client.InferRequestedOutput("OTHER")]
    with (
        grpc_client.InferenceServerClient(address_of(ports.server)) as client,
        pytest.raises(InferenceServerException) as refused,
    ):
        client.infer("simple", inputs(grpc_client), outputs=outputs, client_timeout=LIMIT_S)
    return str(refused.value)


def stream_text(ports: Ports) -> str:
    answers = Responses()
    with grpc_client.InferenceServerClient(address_of(ports.server)) as client:
        client.start_stream(answers.put)
        client.async_stream_infer("simple", inputs(grpc_client), outputs=[grpc_client.InferRequestedOutput("OTHER")])
        return str(answers.next_error())


def platform_text(port: int, path: str, **headers: str) -> str:
    given = [{"name": n, "shape": [1, 16], "datatype": "INT32", "data": [0] * 16} for n in ("INPUT0", "INPUT1")]
    body = {"inputs": given, "outputs": [{"name": "OTHER"}]}
    connection = http.client.HTTPConnection(HOST, port, timeout=LIMIT_S)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
    document = json.loads(connection.getresponse().read())
    connection.close()
    assert list(document) == ["error"]
    text: str = document["error"]
    return text


@pytest.mark.parametrize(
    "ask",
    [
        http_text,
        grpc_text,
        stream_text,
        lambda ports: platform_text(ports.sagemaker, "/invocations"),
        lambda ports: platform_text(ports.vertex, "/v1/endpoints/0/deployedModels/0:predict"),
    ],
    ids=["http", "grpc", "stream", "sagemaker", "vertex"],
)
def test_the_text_ends_with_the_cure_if_it_is_asked_for(ports: Ports, ask: Callable[[Ports], str]) -> None:
    text = ask(ports)
    assert "unexpected inference output 'OTHER' for model 'simple'" in text
    assert text.endswith(CURE), text
