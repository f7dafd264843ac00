"""Messages and an engine for tests of the codec."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.grpc.service_pb2 import ModelInferRequest

from tests.unit.fake_engine import FakeEngine
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.grpc.request import DecodedRequest, MessageDecoder
from trident.core.inference.tensors import BY_NAME, Buffer

NAMES = ("INPUT0", "INPUT1")
FIRST = np.arange(16, dtype=np.int32).tobytes()
SECOND = np.ones(16, np.int32).tobytes()


def spec(name: str = "simple", *, decoupled: bool = False) -> ModelSpec:
    """A model with two inputs and two outputs of 16 INT32."""
    return ModelSpec(
        name=name,
        version=1,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=8,
        inputs={n: InputSpec(name=n, datatype=BY_NAME["INT32"], dims=(16,)) for n in NAMES},
        outputs={
            n: OutputSpec(name=n, datatype=BY_NAME["INT32"], dims=(16,), labels=("zero", "one"))
            for n in ("OUTPUT0", "OUTPUT1")
        },
        decoupled=decoupled,
    )


def infer_message(**fields: Any) -> Any:
    """A ModelInferRequest for the model `simple`, with two tensors in `raw_input_contents`."""
    message = ModelInferRequest(**{"model_name": "simple"} | fields)
    for name in NAMES:
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
    message.raw_input_contents.extend([FIRST, SECOND])
    return message


def decode(message: Any, *, decoder: MessageDecoder | None = None, **options: Any) -> DecodedRequest:
    """Decode a message, or bytes, for the engine of the tests."""
    content: Buffer = message if isinstance(message, (bytes, bytearray, memoryview)) else message.SerializeToString()
    return (decoder or MessageDecoder(FakeEngine().model)).decode(content, **options)
