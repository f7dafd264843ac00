"""The Engine protocol and its plain data."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from inspect import Signature, signature
from typing import Any

from tests.project import pure_python_only
from tests.unit.fake_engine import identity_spec
from trident.core.config.schema import ModelConfig
from trident.core.engine.in_process import InferenceEngine
from trident.core.engine.protocol import CallMark, ConfigMessage, Engine, TensorMetadata, call, mark_of, model_metadata

# Each of them costs a front end more memory than all of its own code.
ENGINE_ONLY = (
    "onnxruntime",
    "boto3",
    "botocore",
    "google.cloud.storage",
    "google.protobuf",
    "tritonclient",
    "trident.core.engine.in_process",
)
FRONT_END = "import trident.core.http.application, trident.core.remote.calls"


def test_a_front_end_imports_no_backend() -> None:
    code = f"import sys; {FRONT_END}; print(*[name for name in {ENGINE_ONLY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.split() == []


@pure_python_only
def test_the_engine_has_every_method_of_the_protocol() -> None:
    asked = {name: _shape(method) for name, method in vars(Engine).items() if not name.startswith("_")}
    assert "model" in asked
    assert {name: _shape(getattr(InferenceEngine, name)) for name in asked} == asked


def _shape(method: Any) -> Signature:
    return signature(method.fget if isinstance(method, property) else method)


def test_a_marked_method_stays_the_same_function() -> None:
    def method(self: object, name: str) -> None: ...

    assert mark_of(method) is None
    assert call(blocks=True)(method) is method
    assert mark_of(method) == CallMark(blocks=True)


def test_metadata_has_the_batch_dimension_and_a_platform() -> None:
    plain, batching = model_metadata(SPEC, [1]), model_metadata(replace(SPEC, max_batch_size=8), [1])
    assert plain.inputs == (TensorMetadata(name="IN", datatype="INT32", shape=(-1,)),)
    assert batching.outputs == (TensorMetadata(name="OUT", datatype="INT32", shape=(-1, -1)),)
    assert model_metadata(SPEC, [1]).platform == "onnxruntime_onnx"
    assert model_metadata(replace(SPEC, platform=""), [1, 2]).platform == "onnxruntime"
    config = ModelConfig(name="m", max_batch_size=8)
    assert ConfigMessage.of(config).parse() == config


SPEC = identity_spec("m")
