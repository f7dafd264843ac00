"""Builds `deploy/examples/running_mean`: the mean of all values that a sequence has sent so far.

    python deploy/build_running_mean.py

Needs the `onnx` package. The total and the count are states: the graph reads what it wrote in the request before.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MODEL = Path(__file__).resolve().parent / "examples" / "running_mean"

CONFIG = """\
name: "running_mean"
backend: "onnxruntime"
max_batch_size: 64
input [ { name: "value" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "mean" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 1024 }
  state [
    {
      input_name: "total_in"
      output_name: "total_out"
      data_type: TYPE_FP32
      dims: [ 1 ]
      initial_state { name: "nothing" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }
    },
    {
      input_name: "count_in"
      output_name: "count_out"
      data_type: TYPE_FP32
      dims: [ 1 ]
      initial_state { name: "none" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }
    }
  ]
}
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


def to_onnx() -> onnx.ModelProto:
    """The graph; all tensors are FP32 [N,1]."""
    inputs, outputs = ["value", "total_in", "count_in"], ["mean", "total_out", "count_out"]
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["total_in", "value"], ["total_out"]),
            helper.make_node("Add", ["count_in", "one"], ["count_out"]),
            helper.make_node("Div", ["total_out", "count_out"], ["mean"]),
        ],
        "running_mean",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1]) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1]) for name in outputs],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
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
