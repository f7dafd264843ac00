from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest

from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.errors import InvalidRequest
from trident.core.frontend.request import forward_header
from trident.core.http.v2_request import decode_request
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import RegionInput, RegionRequest
from trident.core.inference.tensors import BY_NAME

LIMIT = 1 << 20


def spec(*dims: int, datatype: str = "INT32", max_batch_size: int = 8, names: tuple[str, ...] = ("IN",)) -> ModelSpec:
    return ModelSpec(
        name="m",
        version=1,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        inputs={n: InputSpec(name=n, datatype=BY_NAME[datatype], dims=dims) for n in names},
        outputs={"OUT": OutputSpec(name="OUT", datatype=BY_NAME[datatype], dims=dims)},
    )


def decode(document: Any, tail: bytes | None = None, *, limit: int = LIMIT, model: ModelSpec | None = None) -> Any:
    text = document if isinstance(document, bytes) else orjson.dumps(document)
    header_length = None if tail is None else len(text)
    return decode_request(text + (tail or b""), header_length, -1, model or spec(2), limit)


def tensor(**fields: Any) -> dict[str, Any]:
    return {"name": "IN", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]} | fields


def test_decode_request_reads_every_field() -> None:
    request, plan = decode(
        {
            "id": "r1",
            "parameters": {"priority": 2, "timeout": 5, "sequence_id": "s", "sequence_start": True, "mine": 1.5},
            "inputs": [tensor()],
            "outputs": [{"name": "OUT", "parameters": {"binary_data": True, "classification": 3}}, {"name": "B"}],
        }
    )
    assert (request.id, request.priority, request.timeout_us) == ("r1", 2, 5)
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == ("s", True, False)
    assert request.parameters == {"mine": 1.5}
    assert request.outputs == ("OUT", "B")
    assert plan.outputs == {"OUT": (True, 3), "B": (False, 0)}
    assert request.inputs[0].data.tolist() == [1, 2]


def test_binary_tensors_are_views_of_the_body_in_order() -> None:
    content = np.arange(4, dtype=np.int32).tobytes()
    document = {
        "inputs": [
            {"name": n, "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}} for n in ("A", "B")
        ]
    }
    request, _ = decode(document, content)
    assert bytes(request.inputs[0].data) == content[:8]
    assert bytes(request.inputs[1].data) == content[8:]
    assert isinstance(request.inputs[0].data, memoryview)


def test_binary_data_output_counts_only_without_outputs() -> None:
    _, plan = decode({"parameters": {"binary_data_output": True}, "inputs": [tensor()]})
    assert plan.binary
    _, plan = decode({"parameters": {"binary_data_output": True}, "inputs": [tensor()], "outputs": [{"name": "OUT"}]})
    assert plan.outputs == {"OUT": (False, 0)}


ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({"inputs": {}}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"inputs": [1]}, ONE_SOURCE + "no field is set"),
        ({"inputs": [{}]}, ONE_SOURCE + "no field is set"),
        (
            {"inputs": [tensor(parameters={"binary_data_size": 8})]},
            ONE_SOURCE + "set 'data' 'binary_data_size'",
        ),
        (
            {"inputs": [tensor(parameters={"shared_memory_region": "r"})]},
            ONE_SOURCE + "set 'data' 'shared_memory_region'",
        ),
        ({"inputs": [tensor(name=None)]}, "Unable to parse 'name': attempt to access JSON non-string as string"),
        ({"inputs": [tensor(datatype=3)]}, "Unable to parse 'datatype': attempt to access JSON non-string as string"),
        ({"inputs": [tensor(shape="1,2")]}, "Unable to parse 'shape': attempt to access JSON non-array as array"),
        (
            {"inputs": [tensor(shape=[1, -2])]},
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"inputs": [tensor(shape=[1, 2.0])]},
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"inputs": [tensor(shape=[True, 2])]},
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        ({"inputs": [tensor()], "id": 7}, "Unable to parse 'id': attempt to access JSON non-string as string"),
        (
            {"inputs": [tensor()], "parameters": 7},
            "failed to get request params.: attempt to get members for non-object",
        ),
        (
            {"inputs": [tensor()], "parameters": {"sequence_id": -1}},
            "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
        ),
        ({"inputs": None}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"inputs": [{"name": 1, "data": [1]}]}, "Unable to parse 'name': attempt to access JSON non-string as string"),
        (
            {"inputs": [tensor()], "outputs": [{"name": None}]},
            "Unable to parse 'name': attempt to access JSON non-string as string",
        ),
        (
            {"inputs": [tensor()], "parameters": {"priority": -1}},
            "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"inputs": [tensor()], "parameters": {"sequence_start": 1}},
            "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
        ),
        (
            {"inputs": [tensor()], "parameters": {"triton_x": 1}},
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        ),
        (
            {"inputs": [tensor()], "parameters": {"a": {}}},
            "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            {"inputs": [tensor()], "outputs": {"a": 1}},
            "Unable to parse 'outputs': attempt to access JSON non-array as array",
        ),
        (
            {"inputs": [tensor()], "outputs": [{}]},
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (
            {"inputs": [tensor()], "outputs": [{"name": "OUT"}, {"name": "OUT"}]},
            "[request id: <id_unknown>] output 'OUT' already exists in request",
        ),
        (
            {
                "inputs": [tensor()],
                "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "r", "classification": 1}}],
            },
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
    ],
)
def test_refusals_have_tritons_texts(document: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(document)
    assert caught.value.message == message


@pytest.mark.parametrize("field", ["name", "datatype", "shape"])
def test_missing_fields_are_named(field: str) -> None:
    item = tensor()
    del item[field]
    with pytest.raises(
        InvalidRequest, match=f"^Unable to parse '{field}': attempt to access non-existing object member"
    ):
        decode({"inputs": [item]})


def test_short_and_surplus_binary_data_are_refused() -> None:
    document = {"inputs": [tensor(parameters={"binary_data_size": 8})]}
    del document["inputs"][0]["data"]
    with pytest.raises(
        InvalidRequest, match=r"^unexpected size for input 'IN', expecting 3 additional bytes for model 'm'$"
    ):
        decode(document, bytes(5))
    with pytest.raises(InvalidRequest, match=r"^unexpected additional input data for model 'm'$"):
        decode(document, bytes(9))
    with pytest.raises(InvalidRequest, match=r"^must specify valid 'Infer-Header-Content-Length'"):
        decode(document)


def in_region(**parameters: Any) -> dict[str, Any]:
    item = tensor(parameters={"shared_memory_region": "r"} | parameters)
    del item["data"]
    return item


def test_tensors_in_regions_have_their_places() -> None:
    place = {"shared_memory_offset": 8, "shared_memory_byte_size": 64}
    document = {
        "id": "7",
        "inputs": [in_region(**place), tensor(name="B")],
        "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "o", "binary_data": False} | place}],
    }
    for _ in range(2):
        request, plan = decode(document)
        assert isinstance(request, RegionRequest)
        assert (request.id, request.outputs, request.output_regions) == ("7", ("OUT",), {"OUT": ("o", 8, 64)})
        first, second = request.inputs
        assert isinstance(first, RegionInput)
        assert (first.name, first.shape, first.nbytes, first.reference) == ("IN", (1, 2), 64, ("r", 8, 64))
        assert second.data.tolist() == [1, 2]
        assert plan.placed == {"OUT"}


def test_a_place_defaults_to_nothing_at_the_beginning() -> None:
    (given,) = decode({"inputs": [in_region()]})[0].inputs
    assert given.reference == ("r", 0, 0)
    request, _ = decode({"inputs": [in_region() | {"shape": [0, 2]}]})
    assert type(request) is InferenceRequest  # there is nothing to read
    assert bytes(request.inputs[0].data) == b""


@pytest.mark.parametrize("key", ["shared_memory_offset", "shared_memory_byte_size"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", True, None, [], 2**64])
def test_a_place_of_the_wrong_type_is_refused(key: str, value: Any) -> None:
    for document in (
        {"inputs": [in_region(**{key: value})]},
        {"inputs": [tensor()], "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "r", key: value}}]},
    ):
        with pytest.raises(InvalidRequest, match=f"^Unable to parse '{key}': attempt to access JSON non-unsigned"):
            decode(orjson.dumps(document) if value != 2**64 else json.dumps(document).encode())


def test_a_binary_request_with_an_output_in_a_region_is_not_remembered_without_it() -> None:
    item = tensor(parameters={"binary_data_size": 8})
    del item["data"]
    document: dict[str, Any] = {"inputs": [item]}
    document["outputs"] = [{"name": "OUT", "parameters": {"shared_memory_region": "r"}}]
    for _ in range(3):
        assert type(decode(document, bytes(8))[0]) is RegionRequest


def test_sizes_are_checked_before_memory_is_allocated() -> None:
    with pytest.raises(
        InvalidRequest, match=r"^request JSON size of \d+ bytes exceeds the maximum allowed input size of 10"
    ):
        decode({"inputs": [tensor()]}, limit=10)
    with pytest.raises(InvalidRequest, match=r"^JSON input 'IN' has a byte_size \(8000000000 bytes\) that exceeds"):
        decode({"inputs": [tensor(shape=[1, 2_000_000_000])]})
    # More elements than 64 bits can count: validation refuses the shape.
    request, _ = decode({"inputs": [tensor(shape=[2**62, 16])]})
    assert bytes(request.inputs[0].data) == b""


def test_raw_request_deduces_its_shape() -> None:
    request, plan = decode_request(bytes(24), 0, -1, spec(2, -1), LIMIT)
    assert plan.binary
    assert request.inputs[0].shape == (1, 2, 3)
    request, _ = decode_request(b"abc", 0, -1, spec(1, datatype="BYTES", max_batch_size=0), LIMIT)
    assert bytes(request.inputs[0].data) == b"\x03\0\0\0abc"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            spec(2, names=("A", "B")),
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
            "'m' model configuration",
        ),
        (
            spec(-1, -1),
            "[request id: <id_unknown>] The shape of the raw input 'IN' can not be deduced because there are more than "
            "one variable-sized dimension",
        ),
        (
            spec(2, datatype="BYTES"),
            "[request id: <id_unknown>] For BYTE datatype raw input 'IN', the model must have input shape [1]",
        ),
    ],
)
def test_raw_requests_are_refused_for_other_models(model: ModelSpec, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_request(b"", None, -1, model, LIMIT)
    assert caught.value.message == message


def test_forwarded_headers_become_parameters_but_never_reserved_ones() -> None:
    request = InferenceRequest("m", [])
    forward_header(request, "X-Tenant", "a")
    assert request.parameters == {"X-Tenant": "a"}
    for name in ("priority", "triton_x"):
        with pytest.raises(
            InvalidRequest, match=f"^Header '{name}' is reserved for Triton usage and cannot be forwarded"
        ):
            forward_header(request, name, "1")
