"""Regions of shared memory as NVIDIA's client makes them, and requests that name them over both protocols."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from trident.core.inference.tensors import Array


class Speaker(NamedTuple):
    """One protocol: the module of its client, and a client of the server."""

    protocol: str
    module: ModuleType
    client: Any

    def names(self) -> list[str]:
        """The registered system regions."""
        found = self.client.get_system_shared_memory_status()
        return [each["name"] for each in found] if self.protocol == "http" else sorted(found.regions)

    def input(self, name: str, values: Array, datatype: str) -> Any:
        """An input in the request."""
        made = self.module.InferInput(name, list(values.shape), datatype)
        made.set_data_from_numpy(values)
        return made

    def shared_input(self, name: str, shape: list[int], datatype: str, region: str, size: int, offset: int = 0) -> Any:
        made = self.module.InferInput(name, shape, datatype)
        made.set_shared_memory(region, size, offset)
        return made

    def output(self, name: str) -> Any:
        return self.module.InferRequestedOutput(name)

    def shared_output(self, name: str, region: str, size: int, offset: int = 0) -> Any:
        made = self.module.InferRequestedOutput(name)
        made.set_shared_memory(region, size, offset)
        return made

    def refusal(self, call: Any, *args: Any, **kwargs: Any) -> str:
        """The text with which a call of the client ends."""
        try:
            call(*args, **kwargs)
        except InferenceServerException as error:
            return error.message() or ""
        raise AssertionError("it was not refused")


@contextmanager
def speaker(protocol: str, server: ServerProcess) -> Iterator[Speaker]:
    """A client of one of the protocols, `http` or `grpc`."""
    if protocol == "http":
        with triton_http.InferenceServerClient(server.address, concurrency=4) as client:
            yield Speaker(protocol, triton_http, client)
    else:
        with triton_grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
            yield Speaker(protocol, triton_grpc, client)


class Memory:
    """An object of shared memory. `key` is its name."""

    def __init__(self, handle: Any, key: str) -> None:
        self.handle = handle
        self.key = key

    def put(self, values: Array, offset: int = 0) -> int:
        """Write an array as the server reads it; returns its size in bytes."""
        content = serialize_byte_tensor(values) if values.dtype == np.object_ else values
        shm.set_shared_memory_region(self.handle, [content], offset)
        return len(content.item()) if values.dtype == np.object_ else values.nbytes

    def array(self, dtype: Any, shape: list[int], offset: int = 0) -> Array:
        return np.array(shm.get_contents_as_numpy(self.handle, dtype, shape, offset))


@contextmanager
def memory(size: int) -> Iterator[Memory]:
    """An object of `size` bytes, unlinked at the end."""
    key = f"/trident_test_{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(key, key, size, create_only=True)
    try:
        yield Memory(handle, key)
    finally:
        shm.destroy_shared_memory_region(handle)
