"""The requests of a load: inputs by a model's signature or from files, sent over HTTP, gRPC or as a platform does."""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson

from trident.adapters.platforms import BUILT_IN
from trident.core.config.golden import TENSOR_FIELDS, Fields, GoldenTensor, Malformed, golden_tensor
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.sample_request import make_sample
from trident.core.inference.tensors import (
    BYTES,
    Array,
    Datatype,
    Shape,
    bytes_array,
    element_count,
    unpack_bytes,
    wire_bytes,
)
from trident.core.protos.grpc_service_pb2 import ModelInferRequest
from trident.tools.bench.client import Target, grpc_frame, http_request

Inputs = Sequence[GoldenTensor]
_MOST_REQUESTS = 64
_MOST_BYTES = 32 << 20
_SEED = 3
_NOT_JSON = ("FP16", "BF16")

# --- inputs


def make_inputs(spec: ModelSpec, source: str, batch: int, shapes: Mapping[str, Shape]) -> list[Inputs]:
    """The inputs of one or more requests, of which none has more than one item unless `batch` or a file says so.

    `source` is `random`, `zero`, a JSON file or a folder. Raises InvalidRequest.
    """
    if source not in ("random", "zero"):
        return _read(Path(source), spec, batch)
    random = np.random.default_rng(_SEED)
    found: list[Inputs] = []
    size = 0
    given = {name: (batch, *shape) if spec.max_batch_size > 0 else shape for name, shape in shapes.items()}
    sample = make_sample(spec, shapes=given).inputs
    while not found or (source == "random" and len(found) < _MOST_REQUESTS and size < _MOST_BYTES):
        inputs = []
        for each in sample:
            shape = each.shape if each.shape == each.inner or each.name in given else (batch, *each.inner)
            inputs.append(GoldenTensor(each.name, each.datatype, _values(each.datatype, shape, random, source)))
        found.append(inputs)
        size += sum(len(wire_bytes(tensor.array)) for tensor in inputs) + 1
    return found


def _values(datatype: Datatype, shape: Shape, random: np.random.Generator, source: str) -> Array:
    """Numbers that most models take: whole ones are below 100, as places in a table, others between 0 and 1."""
    numbers: Array
    if source == "zero":
        numbers = np.zeros(shape)
    elif datatype.kind in "iu" or datatype is BYTES:
        numbers = random.integers(0, 100, shape)
    elif datatype.kind == "b":
        numbers = random.integers(0, 2, shape)
    else:
        numbers = random.random(shape)
    if datatype is BYTES:
        return bytes_array([str(int(each)).encode() for each in numbers.ravel()], shape)
    if datatype.name == "BF16":
        bits: Array = (numbers.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return bits
    return np.ascontiguousarray(numbers.astype(datatype.dtype))


def _read(path: Path, spec: ModelSpec, batch: int) -> list[Inputs]:
    """Requests of a JSON file (a v2 request, a golden one, or perf_analyzer's data), or of each in a folder.

    A folder without JSON has one request, whose tensors are the files that are named as inputs.
    """
    try:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not files:
            return [[_raw(each, (path / each.name).read_bytes(), None, batch, spec) for each in spec.inputs.values()]]
        found = [inputs for file in files for inputs in _document(json.loads(file.read_bytes()), spec, batch)]
    except (OSError, ValueError, Malformed) as error:
        raise InvalidRequest(
            f"--input-data {path}: {error}",
            hint="random, zero, a JSON file with a request or with perf_analyzer's data, or a folder of such files",
        ) from None
    if not found:
        raise InvalidRequest(f"--input-data {path}: it has no request")
    return found


def _document(document: Any, spec: ModelSpec, batch: int) -> list[Inputs]:
    if not isinstance(document, dict):
        raise Malformed('expected an object with "inputs", "request" or "data"')
    request = document.get("request", document)
    if "data" not in document:
        fields = Fields({"inputs": request.get("inputs")}, "", ("inputs",))
        return [[golden_tensor(each) for each in fields.sections("inputs", TENSOR_FIELDS)]]
    steps = [step for each in document["data"] for step in (each if isinstance(each, list) else [each])]
    return [[_step(spec, name, given, batch) for name, given in step.items()] for step in steps]


def _step(spec: ModelSpec, name: str, given: Any, batch: int) -> GoldenTensor:
    """A tensor as perf_analyzer's file has it, of one item: a list, or its content and shape."""
    known = spec.inputs.get(name)
    if known is None:
        raise Malformed(f"the model has no input '{name}'", hint=", ".join(spec.inputs))
    content, shape = (given.get("content"), given.get("shape")) if isinstance(given, dict) else (given, None)
    if isinstance(content, dict) and "b64" in content:
        try:
            return _raw(known, b64decode(content["b64"], validate=True), shape, batch, spec)
        except BadBase64 as error:
            raise Malformed(f"{name}: {error}") from None
    content = content if isinstance(content, list) else [content]
    inner = _inner(known, shape, np.size(np.array(content, dtype=object)))
    is_batched = spec.max_batch_size > 0 and not known.is_shape_tensor
    whole = [*([batch] if is_batched else []), *inner]
    data = content * (batch if is_batched else 1)
    fields = {"name": name, "datatype": known.datatype.name, "shape": whole, "data": data}
    return golden_tensor(Fields(fields, name, TENSOR_FIELDS))


def _raw(known: InputSpec, content: bytes, shape: Any, batch: int, spec: ModelSpec) -> GoldenTensor:
    datatype = known.datatype
    is_batched = spec.max_batch_size > 0 and not known.is_shape_tensor
    inner = _inner(known, shape, None if datatype is BYTES else len(content) // datatype.size)
    array = array_of(datatype, content, inner, known.name, spec.name)
    return GoldenTensor(known.name, datatype, np.stack([array] * batch) if is_batched else array)


def array_of(datatype: Datatype, content: bytes, shape: Sequence[int], name: str, model: str = "") -> Array:
    """The tensor in the bytes of the wire. Raises Malformed or ServerError."""
    count = element_count(tuple(shape))
    if datatype is BYTES:
        return bytes_array(unpack_bytes(content, count, name=name, model=model), tuple(shape))
    if len(content) != count * datatype.size:
        raise Malformed(f"{name}: {len(content)} bytes are not of shape {list(shape)}")
    return np.frombuffer(content, datatype.dtype).reshape(tuple(shape))


def _inner(known: InputSpec, shape: Any, count: int | None) -> list[int]:
    """The shape of one item, where one dimension may follow from the number of elements."""
    inner = [int(dim) for dim in (known.dims if shape is None else shape)]
    free = [at for at, dim in enumerate(inner) if dim < 0]
    if free and count is not None:
        if len(free) > 1:
            raise Malformed(f"{known.name}: several dimensions may vary", hint='give its "shape"')
        inner[free[0]] = count // max(1, int(np.prod([dim for dim in inner if dim >= 0])))
    if any(dim < 0 for dim in inner) or (count is not None and int(np.prod(inner)) != count):
        raise Malformed(f"{known.name}: {count} elements are not of the shape {inner}")
    return inner


# --- requests

_SEQUENCE_LENGTH = 20
_SEQUENCES = 256
PLATFORMS = {each.name: each for each in BUILT_IN if each.infer_route}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How requests reach the model. `protocol` is http, grpc, or a platform's name."""

    protocol: str = "http"
    version: str = ""
    binary_input: bool = True
    binary_output: bool = True
    streaming: bool = False
    headers: Sequence[tuple[str, str]] = ()

    @property
    def name(self) -> str:
        if self.protocol == "grpc":
            return "gRPC stream" if self.streaming else "gRPC"
        name = {"http": "HTTP"}.get(self.protocol, self.protocol)
        return f"{name} generate_stream" if self.streaming else f"{name} {'binary' if self.binary_input else 'JSON'}"


def make_target(spec: ModelSpec, inputs: Sequence[Inputs], url: str, encoding: Encoding) -> Target:
    """The requests for the server at `url`, which for gRPC is HOST:PORT. Raises InvalidRequest."""
    at = urlsplit(url if "://" in url else f"http://{url}")
    if not at.hostname:
        raise InvalidRequest(f"'{url}' is not an address", hint="http://localhost:8000, or localhost:8001 for gRPC")
    port = at.port or (443 if at.scheme == "https" else 80)
    make = _grpc_request if encoding.protocol == "grpc" else _http_request
    is_sequence = spec.sequence is not None and not spec.sequence.is_iterative
    lists = (
        [_sequence_parameters(number) for number in range(1, _SEQUENCES + 1)] if is_sequence else [[{}] * len(inputs)]
    )
    requests = [
        [
            make(spec, inputs[index % len(inputs)], parameters, at.netloc + at.path, encoding)
            for index, parameters in steps
        ]
        for steps in (list(enumerate(each)) for each in lists)
    ]
    method = ""
    if encoding.protocol == "grpc":
        method = f"/inference.GRPCInferenceService/{'ModelStreamInfer' if encoding.streaming else 'ModelInfer'}"
    return Target(
        host=at.hostname,
        port=port,
        requests=requests,
        method=method,
        headers=[(name.lower(), value) for name, value in encoding.headers],
        streams=bool(method) and encoding.streaming,
        decoupled=spec.decoupled,
        per_connection=is_sequence,
        tls=at.scheme in ("https", "grpcs"),
    )


def _sequence_parameters(number: int) -> list[dict[str, bool | int]]:
    return [
        {"sequence_id": number, "sequence_start": step == 0, "sequence_end": step == _SEQUENCE_LENGTH - 1}
        for step in range(_SEQUENCE_LENGTH)
    ]


def _http_request(
    spec: ModelSpec, inputs: Inputs, parameters: Mapping[str, bool | int], at: str, encoding: Encoding
) -> bytes:
    netloc, slash, base = at.partition("/")
    platform = PLATFORMS.get(encoding.protocol)
    path = platform.infer_route if platform is not None else ""
    if platform is None:
        path = make_sample(spec, encoding.version).path + ("/generate_stream" if encoding.streaming else "/infer")
    headers: dict[str, str | int] = {"Host": netloc}
    if encoding.streaming:
        values = {each.name: _json_data(each)[0] if each.array.size == 1 else _json_data(each) for each in inputs}
        body, size = orjson.dumps(values), 0
    else:
        more = dict(parameters)
        if encoding.binary_output or any(each.datatype.name in _NOT_JSON for each in spec.outputs.values()):
            more["binary_data_output"] = True
        body, size = v2_body({"parameters": more} if more else {}, inputs, is_binary=encoding.binary_input)
    if not size:
        headers["Content-Type"] = "application/json"
    elif platform is not None and platform.binary_type:
        headers["Content-Type"] = f"{platform.binary_type};json-header-size={size}"
    else:
        headers |= {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": size}
    return http_request("POST", (slash + base).rstrip("/") + path, headers | dict(encoding.headers), body)


def v2_body(document: Mapping[str, Any], inputs: Inputs, *, is_binary: bool = True) -> tuple[bytes, int]:
    """The request with these inputs, and the size of its JSON, which is 0 where all of it is JSON."""
    tensors, chunks = [], []
    for each in inputs:
        tensor: dict[str, Any] = {"name": each.name, "datatype": each.datatype.name, "shape": each.array.shape}
        if is_binary or each.datatype.name in _NOT_JSON:
            chunks.append(bytes(wire_bytes(each.array)))
            tensors.append(tensor | {"parameters": {"binary_data_size": len(chunks[-1])}})
        else:
            tensors.append(tensor | {"data": _json_data(each)})
    head = orjson.dumps({**document, "inputs": tensors})
    return b"".join((head, *chunks)), len(head) if chunks else 0


def _json_data(tensor: GoldenTensor) -> list[Any]:
    if tensor.datatype is BYTES:
        try:
            return [each.decode() for each in tensor.array.ravel()]
        except UnicodeDecodeError:
            raise InvalidRequest(f"'{tensor.name}' is not text", hint="--input-tensor-format=binary sends it") from None
    found: list[Any] = tensor.array.ravel().tolist()
    return found


def _grpc_request(
    spec: ModelSpec, inputs: Inputs, parameters: Mapping[str, bool | int], at: str, encoding: Encoding
) -> bytes:
    request = ModelInferRequest(model_name=spec.name, model_version=encoding.version)
    for each in inputs:
        request.inputs.add(name=each.name, datatype=each.datatype.name, shape=each.array.shape)
        request.raw_input_contents.append(bytes(wire_bytes(each.array)))
    for name, value in parameters.items():
        setattr(request.parameters[name], "bool_param" if isinstance(value, bool) else "int64_param", value)
    if encoding.streaming and spec.decoupled:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    return grpc_frame(request.SerializeToString())
