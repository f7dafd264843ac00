"""A ModelInferRequest as an InferenceRequest, and the integers and strings of protobuf."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import (
    InferParameter,
    InferTensorContents,
    ModelInferResponse,
)

from tests.project import ROOT
from tests.unit.core.grpc.codec_messages import FIRST, NAMES, SECOND, decode, infer_message, spec
from tests.unit.fake_engine import FakeEngine, FakeModel
from trident.core.errors import BackendFailed, InvalidRequest, ModelNotFound, Unsupported
from trident.core.frontend.dataplane import ResponsePlan, read_parameters
from trident.core.grpc.infer import (
    Encoded,
    encode_response,
)
from trident.core.grpc.request import (
    PARAMETERS,
    MessageDecoder,
    array_of_contents,
)
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor, PackedOutputs, RegionInput, RegionRequest
from trident.core.inference.tensors import BY_NAME, Array, layout_of


class DecoupledEngine(FakeEngine):
    """Its models may give any number of responses."""

    def model(self, name: str, version: int = -1) -> FakeModel:
        return FakeModel(self, spec(name, decoupled=True))


def contents(request: InferenceRequest) -> list[bytes]:
    return [bytes(tensor.data) for tensor in request.inputs]


@pytest.mark.parametrize("waits", [True, False])
def test_arrival_time_is_read_only_for_models_with_a_queue_delay(waits: bool) -> None:
    engine = FakeEngine()
    known = replace(spec(), counts_arrival=waits)
    engine.model = lambda name, version=-1: FakeModel(engine, known)  # type: ignore[method-assign]
    decoder = MessageDecoder(engine.model)
    begin_ns = time.monotonic_ns()
    for _ in range(2):  # the second one is known
        request = decode(infer_message(), decoder=decoder).request
        assert (begin_ns <= request.arrived_ns <= time.monotonic_ns()) is waits
        assert bool(request.arrived_ns) is waits


def test_cached_decoding_of_an_unloaded_model_is_refused() -> None:
    engine = FakeEngine()
    decoder = MessageDecoder(engine.model)
    decode(infer_message(), decoder=decoder)
    engine.versions.clear()
    with pytest.raises(ModelNotFound):
        decode(infer_message(), decoder=decoder)


def test_forwarded_headers_are_parameters_and_never_reserved_ones() -> None:
    decoder = MessageDecoder(FakeEngine().model)
    message = infer_message()
    message.parameters["mine"].bool_param = True
    for value in ("one", "two"):
        request = decode(message, decoder=decoder, forwarded=[("x-tag", value)]).request
        assert request.parameters == {"mine": True, "x-tag": value}
    assert decode(message, decoder=decoder).request.parameters == {"mine": True}
    decoder = MessageDecoder(FakeEngine().model)
    decode(infer_message(), decoder=decoder)
    for message in (infer_message(), infer_message(outputs=[{"name": "OUTPUT0"}])):
        with pytest.raises(InvalidRequest, match="Header 'timeout' is reserved for Triton usage"):
            decode(message, decoder=decoder, forwarded=[("timeout", "1")])


def test_a_stream_may_use_a_model_that_answers_many_times() -> None:
    decoder = MessageDecoder(DecoupledEngine().model)
    assert decode(infer_message(), decoder=decoder, stream=True).model.spec.decoupled
    for _ in range(2):
        with pytest.raises(Unsupported, match="ModelInfer RPC doesn't support models with decoupled transaction poli"):
            decode(infer_message(), decoder=decoder)


def in_region(message: Any, **fields: Any) -> Any:
    parameters = message.inputs[0].parameters
    parameters["shared_memory_region"].string_param = "r"
    parameters["shared_memory_byte_size"].int64_param = 64
    return message


def output_in_region(message: Any, **parameters: int) -> Any:
    output = message.outputs.add(name="OUTPUT0")
    output.parameters["shared_memory_region"].string_param = "r"
    output.parameters["shared_memory_byte_size"].int64_param = 64
    for key, value in parameters.items():
        output.parameters[key].int64_param = value
    return message


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            infer_message(inputs=[{"name": "X", "shape": [1] * 65}]).SerializeToString(),
            "Unable to parse 'shape': 65 dimensions are more than the maximum of 64",
        ),
        (b"\x2a\x00" * 5000, "the request has 5000 inputs, which are more than the maximum of 4096"),
        (b"\x32\x00" * 5000, "the request has 5000 outputs, which are more than the maximum of 4096"),
        (
            b"".join(b"\x22\x06\x0a\x04%04d" % number for number in range(5000)),
            "the request has 5000 parameters, which are more than the maximum of 4096",
        ),
    ],
    ids=["dimensions", "inputs", "outputs", "parameters"],
)
def test_request_over_a_protocol_limit_is_refused(fields: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decode(b"\x0a\x06simple" + fields)
    assert str(refusal.value) == text


def test_many_surplus_tensors_are_ignored() -> None:
    message = infer_message().SerializeToString() + b"\x3a\x00" * 100_000
    assert contents(decode(message).request) == [FIRST, SECOND]


def test_tensors_in_regions_have_offset_and_size() -> None:
    decoder = MessageDecoder(FakeEngine().model)
    for _ in range(2):  # such a request is not remembered
        message = output_in_region(in_region(infer_message(id="7")), shared_memory_offset=8)
        del message.raw_input_contents[0]
        request = decode(message, decoder=decoder).request
        assert isinstance(request, RegionRequest)
        assert (request.id, request.outputs, request.output_regions) == ("7", ("OUTPUT0",), {"OUTPUT0": ("r", 8, 64)})
        first, second = request.inputs
        assert isinstance(first, RegionInput)
        assert (first.name, first.datatype, first.shape, first.reference) == (NAMES[0], "INT32", (1, 16), ("r", 0, 64))
        assert bytes(second.data) == SECOND
    request = decode(output_in_region(infer_message()), decoder=decoder).request
    assert type(decode(infer_message(), decoder=decoder).request) is InferenceRequest
    assert type(decode(output_in_region(infer_message()), decoder=decoder).request) is type(request) is RegionRequest


def array_of(datatype: str, **fields: Any) -> Any:
    return array_of_contents(InferTensorContents(**fields), datatype, "IN", "m")


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False, True]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-32768, 32767]),
        ("INT32", "int_contents", [-(2**31), 0, 2**31 - 1]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [65535]),
        ("UINT32", "uint_contents", [2**32 - 1]),
        ("UINT64", "uint64_contents", [2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, -0.0, 2.0**127, float("inf")]),
        ("FP64", "fp64_contents", [1e300, 0.1]),
        ("FP32", "fp32_contents", [0.25] * 50_000),
    ],
)
def test_each_datatype_has_its_field(datatype: str, field: str, values: list[Any]) -> None:
    array = array_of(datatype, **{field: values})
    assert array.dtype == BY_NAME[datatype].dtype
    assert array.flags.aligned
    assert array.tolist() == values


def test_strings_have_any_length() -> None:
    array = array_of("BYTES", bytes_contents=[b"a", b"", b"\xff\0"])
    assert (array.dtype, array.tolist()) == (object, [b"a", b"", b"\xff\0"])
    assert array_of("FP32") is None
    assert array_of("FP16") is None


def parameters(**values: dict[str, Any]) -> dict[str, Any]:
    return {key: InferParameter(**value) for key, value in values.items()}


def read(**values: dict[str, Any]) -> tuple[InferenceRequest, bool]:
    request = InferenceRequest("m", [])
    return request, read_parameters(parameters(**values), request, PARAMETERS)


def test_protocol_parameters_are_decoded() -> None:
    request, empty_final = read(
        sequence_id={"string_param": "s"},
        sequence_start={"bool_param": True},
        sequence_end={"bool_param": True},
        priority={"uint64_param": 2**64 - 1},
        timeout={"int64_param": 5},
        triton_enable_empty_final_response={"bool_param": True},
    )
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == ("s", True, True)
    assert (request.priority, request.timeout_us) == (2**64 - 1, 5)
    assert request.parameters is None
    assert empty_final


def test_duplicate_name_is_reported_before_other_faults() -> None:
    for kind, names in (("input", ("A", "A")), ("output", ("B", "A", "A"))):
        message = infer_message()
        for name in names:  # the inputs without data
            getattr(message, f"{kind}s").add(name=name)
        del message.raw_input_contents[:]
        with pytest.raises(InvalidRequest) as refusal:
            decode(message)
        assert str(refusal.value) == f"[request id: <id_unknown>] {kind} 'A' already exists in request"


SCRIPT = """
import sys
import trident.core.grpc.application
print("google.protobuf" in sys.modules)
from trident.core.grpc.messages import parse
parse("ModelReadyRequest", b"")
print("google.protobuf" in sys.modules, "grpc" in sys.modules)
"""


def test_protobuf_is_imported_with_the_first_message_and_grpc_never() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False"]


# --- request templates


def test_tensors_with_moved_boundaries_are_decoded_separately() -> None:
    decoder = MessageDecoder(FakeEngine().model)
    for large in (b"", bytes(100_000)):
        first = infer_message()
        first.raw_input_contents[0] = large + FIRST
        decode(first, decoder=decoder)
        moved = infer_message()
        moved.raw_input_contents[0] = large + FIRST[:-4]
        moved.raw_input_contents[1] = SECOND + bytes(4)
        inputs = decode(moved, decoder=decoder).request.inputs
        assert [bytes(tensor.data) for tensor in inputs] == list(moved.raw_input_contents)


@pytest.mark.parametrize("size", [0, 2048])
def test_requests_without_tensors_or_with_long_heads_are_not_remembered(size: int) -> None:
    decoder = MessageDecoder(FakeEngine().model)
    message = infer_message()
    if size:
        message.inputs[0].name = "n" * size
    else:
        message.ClearField("inputs")
        message.ClearField("raw_input_contents")
    content = message.SerializeToString()
    decode(content, decoder=decoder)
    assert decoder._fill(content) is None


# --- responses


PLAN = ResponsePlan()


def whole(encoded: Encoded) -> bytes:
    parts, size = encoded
    content = b"".join(parts)
    assert len(content) == size
    return content


def unary(response: InferenceResponse, plan: ResponsePlan = PLAN) -> Any:
    return ModelInferResponse.FromString(whole(encode_response(response, plan, spec())))


def packed() -> PackedOutputs:
    layout = layout_of([("OUTPUT0", "INT32", (1, 16), 64), ("OUTPUT1", "INT32", (1, 16), 64)])
    return PackedOutputs(layout, memoryview(FIRST + SECOND))


def tensor(name: str, datatype: str, array: Array) -> OutputTensor:
    return OutputTensor(name, datatype, array.shape, array)


def separate() -> list[OutputTensor]:
    return [
        tensor(name, "INT32", np.frombuffer(content, np.int32).reshape(1, 16))
        for name, content in (("OUTPUT0", FIRST), ("OUTPUT1", SECOND))
    ]


def expected(**fields: Any) -> Any:
    message = ModelInferResponse(model_name="simple", model_version="3", **fields)
    for name in ("OUTPUT0", "OUTPUT1"):
        message.outputs.add(name=name, datatype="INT32", shape=[1, 16])
    message.raw_output_contents.extend([FIRST, SECOND])
    return message


@pytest.mark.parametrize("outputs", [packed(), separate()], ids=["packed", "separate"])
@pytest.mark.parametrize("response_id", ["", "a", "ä" * 100])
def test_a_response_has_its_outputs_in_order(outputs: Any, response_id: str) -> None:
    for _ in range(2):
        response = InferenceResponse("simple", 3, outputs, id=response_id)
        assert unary(response) == expected(id=response_id)
        # The bytes, too, are those that protobuf writes.
        assert whole(encode_response(response, PLAN, spec())) == expected(id=response_id).SerializeToString()


def test_parameters_keep_their_types_or_fail() -> None:
    parameters = {"b": False, "i": -5, "s": "", "f": 0.25, "l": 2**63 - 1}
    message = unary(InferenceResponse("m", 1, [], parameters=dict(parameters)))
    read = {key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in message.parameters.items()}
    assert read == parameters
    assert type(read["b"]) is bool
    with pytest.raises(BackendFailed, match="the parameter 'n', which is not a 64-bit integer"):
        unary(InferenceResponse("m", 1, [], parameters={"n": 2**63}))


def test_a_message_over_the_limit_of_grpc_is_refused() -> None:
    zeros = np.zeros(2**31 - 40, np.uint8)  # memory that is never touched
    response = InferenceResponse("simple", 3, [tensor("A", "UINT8", zeros)])
    size = 2**31 - 40 + len(encode_response(response, PLAN, spec())[0][0]) + 6
    assert encode_response(response, PLAN, spec())[1] == size
    response.id = "r" * 40
    text = f"Response has byte size {size + 42} which exceeds gRPC's byte size limit 2147483647."
    with pytest.raises(InvalidRequest, match=text):
        encode_response(response, PLAN, spec())
