"""A worker of NVIDIA Dynamo whose models run in a `trident.Server` of its process.

    python -m deploy.dynamo.worker deploy/models --discovery-backend=file

Source: deploy/dynamo/README.md; the dictionaries of ai-dynamo 1.6's `dynamo.triton`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
from dynamo.common.utils.graceful_shutdown import install_signal_handlers
from dynamo.common.utils.runtime import create_runtime
from dynamo.llm import ModelInput, ModelType, WorkerType, register_model
from google.protobuf import json_format

import trident
from trident.core.config.schema import ModelConfig

# By Dynamo's datatype: numpy's type of its values, which are bit patterns for Float16 and BFloat16.
_DTYPES: dict[str, Any] = {
    "Bool": np.bool_,
    **{f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits}") for kind in ("Int", "Uint") for bits in (8, 16, 32, 64)},
    "Float16": np.uint16,
    "BFloat16": np.uint16,
    "Float32": np.float32,
    "Float64": np.float64,
}
_DATATYPES = {
    "BOOL": "Bool",
    "FP16": "Float16",
    "BF16": "BFloat16",
    "FP32": "Float32",
    "FP64": "Float64",
    "BYTES": "Bytes",
}
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")


async def main(arguments: Sequence[str]) -> None:
    parser = ArgumentParser(prog="python -m deploy.dynamo.worker", allow_abbrev=False)
    parser.add_argument("repository", help="its models are registered under their names")
    for name, default, choices in (
        ("discovery-backend", "etcd", ["kubernetes", "etcd", "file", "mem"]),
        ("request-plane", "tcp", ["tcp", "nats"]),
        ("namespace", "dynamo", None),
    ):
        variable = f"DYN_{name.upper().replace('-', '_')}"
        value = os.environ.get(variable, default)
        if choices and value not in choices:
            parser.error(f"{variable} is '{value}', not one of {', '.join(choices)}")
        parser.add_argument(f"--{name}", default=value, choices=choices, help=f"else {variable}, else {default}")
    given = parser.parse_args(arguments)
    runtime, loop = create_runtime(given.discovery_backend, given.request_plane)
    server = await asyncio.to_thread(trident.Server, given.repository)
    endpoints: list[Any] = []

    async def close() -> None:
        await asyncio.to_thread(server.close)

    install_signal_handlers(loop, runtime, endpoints, cleanup_callback=close)
    try:
        async with asyncio.TaskGroup() as tasks:
            for name, version in _served(server):
                tasks.create_task(_serve(runtime, endpoints, given.namespace, name, server.model(name, version)))
    finally:
        await close()


def _served(server: trident.Server) -> list[tuple[str, int]]:
    """The models that serve, each with its latest version."""
    found: dict[str, int] = {}
    for entry in server.index(ready_only=True):
        found[entry["name"]] = max(found.get(entry["name"], 0), int(entry["version"]))
    return sorted(found.items())


async def _serve(runtime: Any, endpoints: list[Any], namespace: str, name: str, model: trident.Model) -> None:
    # Names of endpoints have few characters, and none may begin with another.
    slug = re.sub(r"[^a-z0-9_-]", "_", name.lower())
    endpoint = runtime.endpoint(f"{namespace}.trident.{slug}_{hashlib.sha256(name.encode()).hexdigest()[:8]}")
    endpoints.append(endpoint)
    config = json_format.ParseDict(model.config(), ModelConfig())
    tensors = {"name": "", "inputs": [], "outputs": [], "triton_model_config": config.SerializeToString()}
    await register_model(
        ModelInput.Tensor,
        ModelType.TensorBased,
        endpoint,
        name,
        worker_type=WorkerType.Aggregated,
        tensor_model_config=tensors,
    )
    worker = Worker(model, decoupled=config.model_transaction_policy.decoupled)
    await endpoint.serve_endpoint(worker.generate)


class Worker:
    """Answers the requests of Dynamo's front end for one model."""

    def __init__(self, model: trident.Model, *, decoupled: bool) -> None:
        self._model = model
        self._decoupled = decoupled
        self._datatypes = {each["name"]: each["datatype"] for each in model.metadata()["outputs"]}

    async def generate(self, request: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The responses to a request; raises ValueError, whose text the client gets."""
        try:
            options = _options(request)
            model = self._model.with_options(**options)
            inputs = {each["metadata"]["name"]: _array(each) for each in request["tensors"]}
            if not self._decoupled:
                yield self._response(request, await model.infer_async(inputs), options)
                return
            with model.stream(inputs) as responses:
                async for outputs in responses:
                    yield self._response(request, outputs, options)
        except trident.ServerError as error:
            raise ValueError(f"{error.message}; {error.hint}" if error.hint else error.message) from None

    def _response(self, request: Mapping[str, Any], outputs: Mapping[str, Any], options: Any) -> dict[str, Any]:
        classes = options.get("classes", 0)
        tensors = [_tensor(name, "BYTES" if classes else self._datatypes[name], each) for name, each in outputs.items()]
        return {"id": request.get("id") or "", "model": self._model.name, "tensors": tensors}


def _options(request: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the library's request. Raises trident.InvalidRequest for what it cannot honour."""
    found: dict[str, Any] = {"id": request.get("id") or ""}
    outputs = request.get("outputs") or []
    if outputs:
        found["outputs"] = tuple(each["name"] for each in outputs)
    asked = [_values(each.get("parameters")) for each in outputs]
    unknown = sorted({name for each in asked for name in each} - {"classification"})
    counts = {each.get("classification", 0) for each in asked}
    if unknown or len(counts) > 1:
        wrong = f"parameter '{unknown[0]}' of an output" if unknown else "outputs with different classifications"
        raise trident.InvalidRequest(f"{wrong} cannot be honoured behind Dynamo")
    if counts != {0} and counts:
        (found["classes"],) = counts
    parameters = _values(request.get("parameters"))
    for name in (*_SEQUENCE, "priority"):
        if name in parameters:
            found[name] = parameters.pop(name)
    if "timeout" in parameters:
        found["timeout_s"] = parameters.pop("timeout") / 1e6
    if parameters:
        found["parameters"] = parameters
    return found


def _values(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters without the tags of their types."""
    return {
        name: next(iter(each.values())) if isinstance(each, dict) else each for name, each in (parameters or {}).items()
    }


def _array(tensor: Mapping[str, Any]) -> Any:
    metadata, values = tensor["metadata"], tensor["data"]["values"]
    name, datatype, shape = metadata["name"], metadata["data_type"], metadata["shape"]
    if datatype == "Bytes":
        array = np.empty(len(values), object)
        array[:] = [bytes(each) for each in values]
    elif datatype in _DTYPES:
        array = np.asarray(values, _DTYPES[datatype])
        if datatype == "Float16":
            array = array.view(np.float16)
    else:
        raise trident.InvalidRequest(f"input '{name}' has the datatype {datatype}, which Triton does not have")
    try:
        return array.reshape(shape)
    except ValueError:
        raise trident.InvalidRequest(f"input '{name}' has {array.size} elements, which is not shape {shape}") from None


def _tensor(name: str, datatype: str, array: Any) -> dict[str, Any]:
    kind = _DATATYPES.get(datatype, datatype.capitalize())
    if kind == "Bytes":
        values = [list(each) for each in array.ravel().tolist()]
    else:
        values = (array.view(np.uint16) if kind == "Float16" else array).ravel().tolist()
    shape = list(array.shape)
    return {
        "metadata": {"name": name, "data_type": kind, "shape": shape},
        "data": {"data_type": kind, "values": values},
    }


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
