"""Requests of `tritonclient.grpc` for the models that contract tests serve."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from trident.core.inference.tensors import Array

LIMIT_S = 60.0


def address_of(server: ServerProcess) -> str:
    return f"{HOST}:{server.grpc_port}"


@contextmanager
def client_of(server: ServerProcess) -> Iterator[Any]:
    """NVIDIA's client."""
    with triton.InferenceServerClient(address_of(server)) as client:
        yield client


@contextmanager
def stub_of(server: ServerProcess) -> Iterator[Any]:
    """The generated stub, for messages that the client does not write."""
    # Each channel its own connection: with front ends they go to different ones.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address_of(server), options) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def tensor(name: str, values: Array, datatype: str) -> Any:
    made = triton.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values)
    return made


def simple_inputs(seed: int = 0) -> list[Any]:
    first = np.arange(seed, seed + 16, dtype=np.int32).reshape(1, 16)
    return [tensor("INPUT0", first, "INT32"), tensor("INPUT1", np.full((1, 16), 3, np.int32), "INT32")]


def assert_simple(result: Any, seed: int = 0) -> None:
    first = np.arange(seed, seed + 16)
    assert result.as_numpy("OUTPUT0").tolist() == [(first + 3).tolist()]
    assert result.as_numpy("OUTPUT1").tolist() == [(first - 3).tolist()]


def simple_message(**fields: Any) -> Any:
    """A ModelInferRequest for `simple` with raw contents."""
    request = pb.ModelInferRequest(**{"model_name": "simple", **fields})
    for name, values in (("INPUT0", np.arange(16)), ("INPUT1", np.full(16, 3))):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(values.astype(np.int32).tobytes())
    return request


def rpc_refusal(call: Any, message: Any, **kwargs: Any) -> tuple[str, str]:
    """The same for a call of the stub."""
    try:
        call(message, timeout=LIMIT_S, **kwargs)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError("it was answered")


class Responses:
    """The responses of a stream of the client, in their order."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def put(self, result: Any, error: Any) -> None:
        """The callback for the client."""
        self._queue.put((result, error))

    def next(self) -> tuple[Any, Any]:
        return self._queue.get(timeout=LIMIT_S)

    def next_result(self) -> Any:
        result, error = self.next()
        assert error is None
        return result

    def next_error(self) -> Any:
        _, error = self.next()
        assert error is not None
        return error
