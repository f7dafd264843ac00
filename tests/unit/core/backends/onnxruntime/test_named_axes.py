"""The names that dimensions have in a graph."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from tests.unit.bucket_configs import bucket_model, bucket_text
from tests.unit.onnx_models import Dims, build, helper, tensor, write
from trident.core.backends.onnxruntime.graph import named_axes


@pytest.mark.parametrize(
    ("shape", "out_shape", "expected"),
    [
        (("batch", "length"), ("batch", "length"), [1]),
        (("batch", "length"), ("batch", "other"), []),
        (("batch", "length"), ("length", "length"), [0, 1]),
        (("batch", 4), ("batch", 4), []),
    ],
)
def test_dimensions_with_the_name_of_the_length_are_found(
    tmp_path: Path, shape: Dims, out_shape: Dims, expected: list[int]
) -> None:
    nodes = [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])]
    graph = build(nodes, [tensor("INPUT0", "FP32", shape)], [tensor("OUTPUT0", "FP32", out_shape)])
    session = onnxruntime.InferenceSession(write(graph, tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    _, buckets = bucket_model(bucket_text(LENGTH_BUCKETS="4"))
    assert named_axes(session, buckets) == {"OUTPUT0": expected}
