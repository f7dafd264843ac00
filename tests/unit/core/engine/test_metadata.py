from __future__ import annotations

from dataclasses import replace

from tests.unit.fake_engine import identity_spec
from trident.core.engine.protocol import TensorMetadata, model_metadata

SPEC = identity_spec("m")


def test_a_shape_begins_with_the_batch_dimension_of_a_model_that_batches() -> None:
    plain, batching = model_metadata(SPEC, [1]), model_metadata(replace(SPEC, max_batch_size=8), [1])
    assert plain.inputs == (TensorMetadata(name="IN", datatype="INT32", shape=(-1,)),)
    assert batching.outputs == (TensorMetadata(name="OUT", datatype="INT32", shape=(-1, -1)),)


def test_the_backend_stands_in_for_a_missing_platform() -> None:
    assert model_metadata(SPEC, [1]).platform == "onnxruntime_onnx"
    assert model_metadata(replace(SPEC, platform=""), [1, 2]).platform == "onnxruntime"
