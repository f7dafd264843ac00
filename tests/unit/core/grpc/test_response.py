from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import ModelInferResponse, ModelStreamInferResponse

from tests.unit.core.grpc.codec_messages import FIRST, SECOND, spec
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.grpc.infer import (
    Encoded,
    encode_response,
    encode_stream_error,
    encode_stream_failure,
    encode_stream_response,
)
from trident.core.grpc.request import ResponsePlan
from trident.core.inference.response import InferenceResponse, OutputTensor, PackedOutputs
from trident.core.inference.tensors import Array, layout_of

PLAN = ResponsePlan()


def whole(encoded: Encoded) -> bytes:
    parts, size = encoded
    content = b"".join(parts)
    assert len(content) == size
    return content


def unary(response: InferenceResponse, plan: ResponsePlan = PLAN) -> Any:
    return ModelInferResponse.FromString(whole(encode_response(response, plan, spec())))


def stream(encoded: Encoded) -> Any:
    return ModelStreamInferResponse.FromString(whole(encoded))


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
    with pytest.raises(BackendFailed, match="the parameter 'n', which is no 64-bit integer"):
        unary(InferenceResponse("m", 1, [], parameters={"n": 2**63}))


def test_classes_replace_the_values_of_an_output() -> None:
    message = unary(InferenceResponse("simple", 1, packed(), id="r"), ResponsePlan({"OUTPUT0": 2, "OUTPUT1": 0}))
    assert [(o.datatype, list(o.shape)) for o in message.outputs] == [("BYTES", [1, 2]), ("INT32", [1, 16])]
    assert message.raw_output_contents[0] == b"\5\0\0\x0015:15\5\0\0\x0014:14"
    assert message.raw_output_contents[1] == SECOND


def test_a_response_in_a_stream_says_whether_it_is_the_last() -> None:
    for outputs in (packed(), separate()):
        for final in (True, False):
            response = InferenceResponse("simple", 3, outputs, id="r")
            message = stream(encode_stream_response(response, PLAN, spec(), final=final))
            assert message.error_message == ""
            wanted = expected(id="r")
            wanted.parameters["triton_final_response"].bool_param = final
            assert message.infer_response == wanted


def test_a_refused_or_failed_request_in_a_stream_is_answered() -> None:
    message = stream(encode_stream_error("no such model", "r"))
    assert message.error_message == "no such model"
    assert message.infer_response == ModelInferResponse(id="r")
    assert stream(encode_stream_error("text", "")).HasField("infer_response")
    message = stream(encode_stream_failure("it broke", "r", "simple", "3"))
    assert message.error_message == "it broke"
    answer = message.infer_response
    assert (answer.id, answer.model_name, answer.model_version) == ("r", "simple", "3")
    assert answer.parameters["triton_final_response"].bool_param


def test_a_message_over_the_limit_of_grpc_is_refused() -> None:
    zeros = np.zeros(2**31 - 40, np.uint8)  # memory that is never touched
    response = InferenceResponse("simple", 3, [tensor("A", "UINT8", zeros)])
    size = 2**31 - 40 + len(encode_response(response, PLAN, spec())[0][0]) + 6
    assert encode_response(response, PLAN, spec())[1] == size
    response.id = "r" * 40
    text = f"Response has byte size {size + 42} which exceeds gRPC's byte size limit 2147483647."
    with pytest.raises(InvalidRequest, match=text):
        encode_response(response, PLAN, spec())
