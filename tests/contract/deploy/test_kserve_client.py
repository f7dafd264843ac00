"""KServe's own client. It is not among the packages of the tests, as it brings FastAPI, Kubernetes and pandas:
`pip install kserve`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models

kserve = pytest.importorskip("kserve")

ROW = list(range(16))

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("kserve")
    # As the serving runtime sets it: the client reads the bodies of health probes.
    options = ("--health-body=json", "--shutdown-grace-secs=0")
    with ServerProcess(link_models(folder / "models", "simple"), folder / "log", *options) as running:
        yield running


def request(*binary: str) -> Any:
    """Add/sub. The inputs named go as raw bytes, the others as JSON or contents."""
    inputs = [kserve.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(np.array([ROW], np.int32), binary_data=each.name in binary)
    return kserve.InferRequest(model_name="simple", infer_inputs=inputs, request_id="first")


def test_version_1_of_the_protocol(server: ServerProcess) -> None:
    async def ask() -> None:
        async with kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v1")) as client:
            assert await client.is_model_ready(f"http://{server.address}", "simple")
            instances = [{"INPUT0": ROW, "INPUT1": ROW}]
            answer = await client.infer(f"http://{server.address}", {"instances": instances}, model_name="simple")
        assert answer["predictions"][0]["OUTPUT0"] == [2 * each for each in ROW]

    asyncio.run(ask())


def test_version_2_over_http(server: ServerProcess) -> None:
    async def ask() -> None:
        async with kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2")) as client:
            assert await client.is_server_live(f"http://{server.address}")
            assert await client.is_server_ready(f"http://{server.address}")
            assert await client.is_model_ready(f"http://{server.address}", "simple")
            answer = await client.infer(f"http://{server.address}", request("INPUT1"), model_name="simple")
        assert (answer.model_name, answer.id) == ("simple", "first")
        assert answer.outputs[0].as_numpy().tolist() == [[2 * each for each in ROW]]

    asyncio.run(ask())


def test_version_2_over_grpc(server: ServerProcess) -> None:
    async def ask() -> None:
        async with kserve.InferenceGRPCClient(f"127.0.0.1:{server.grpc_port}") as client:
            assert await client.is_server_ready()
            assert await client.is_model_ready("simple")
            answer = await client.infer(request("INPUT0", "INPUT1"))
        assert answer.outputs[1].as_numpy().tolist() == [[0] * 16]

    asyncio.run(ask())
