"""Builds `deploy/models/simple`: OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1, 16 integers each.

    python deploy/build_simple.py

Needs the `onnx` package. The model is small enough to check a response by hand.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

MODEL = Path(__file__).resolve().parent / "models" / "simple"

CONFIG = """\
name: "simple"
backend: "onnxruntime"
max_batch_size: 64
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


def to_onnx() -> onnx.ModelProto:
    """The graph; all tensors are INT32 [N,16]."""
    inputs, outputs = ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"]
    graph = helper.make_graph(
        [helper.make_node("Add", inputs, outputs[:1]), helper.make_node("Sub", inputs, outputs[1:])],
        "simple",
        [helper.make_tensor_value_info(name, TensorProto.INT32, ["N", 16]) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.INT32, ["N", 16]) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    (MODEL / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(), MODEL / "1" / "model.onnx")
    (MODEL / "config.pbtxt").write_text(CONFIG)
    print(f"wrote {MODEL}")


if __name__ == "__main__":
    main()
