"""Builds a model repository with `voice_detector`: Silero VAD, as a model that takes raw audio piece by piece.

    python deploy/build_voice_detector.py FOLDER

Needs the `onnx` package, and pip with an index: the network comes out of the package `silero-vad` (MIT license), of
which nothing is installed or run. The network wants numbers from -1 to 1 and the last 64 samples again before each new
512; the graph here does that, so that a client sends the samples as they come.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PACKAGE = "silero-vad==6.2.3"
NETWORK = "silero_vad/data/silero_vad_openvino_16k.onnx"

CONFIG = """\
name: "voice_detector"
backend: "onnxruntime"
input [ { name: "audio" data_type: TYPE_INT16 dims: [ 512 ] } ]
output [ { name: "speech" data_type: TYPE_FP32 dims: [ 1, 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 30000000
  direct { }
  state [
    {
      input_name: "context"
      output_name: "next_context"
      data_type: TYPE_FP32
      dims: [ 1, 64 ]
      initial_state { name: "silence" data_type: TYPE_FP32 dims: [ 1, 64 ] zero_data: true }
    },
    {
      input_name: "state"
      output_name: "stateN"
      data_type: TYPE_FP32
      dims: [ 2, 1, 128 ]
      initial_state { name: "nothing" data_type: TYPE_FP32 dims: [ 2, 1, 128 ] zero_data: true }
    }
  ]
}
instance_group [ { kind: KIND_CPU count: 4 } ]
"""


def build(folder: Path, network: onnx.ModelProto) -> None:
    """Write the repository. `network` has the inputs `input` and `state`, the outputs `output` and `stateN`."""
    version = folder / "voice_detector" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    onnx.save(with_raw_audio(network), version / "model.onnx")


def with_raw_audio(network: onnx.ModelProto) -> onnx.ModelProto:
    """The network with 16-bit samples as its input, and with the last of them as a state."""
    graph = network.graph
    numbers = {
        "scale": np.float32(32768),
        "row": np.array([1, 512], np.int64),
        "last": np.array([512], np.int64),
        "end": np.array([576], np.int64),
        "time": np.array([1], np.int64),
    }
    before = [
        helper.make_node("Cast", ["audio"], ["samples"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["samples", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "row"], ["new"]),
        helper.make_node("Concat", ["context", "new"], ["input"], axis=1),
        helper.make_node("Slice", ["input", "last", "end", "time"], ["next_context"]),
    ]
    made = helper.make_graph(
        [*before, *graph.node, helper.make_node("Identity", ["output"], ["speech"])],
        "voice_detector",
        [
            _value("audio", TensorProto.INT16, 512),
            _value("context", TensorProto.FLOAT, 1, 64),
            *(each for each in graph.input if each.name == "state"),
        ],
        [
            _value("speech", TensorProto.FLOAT, 1, 1),
            _value("next_context", TensorProto.FLOAT, 1, 64),
            *(each for each in graph.output if each.name == "stateN"),
        ],
        [*graph.initializer, *(numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items())],
    )
    model = helper.make_model(made, opset_imports=network.opset_import, ir_version=network.ir_version)
    onnx.checker.check_model(model)
    return model


def _value(name: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def download() -> onnx.ModelProto:
    """The network, from the package index that pip uses."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", folder, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            return onnx.load_model_from_string(files.read(NETWORK))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    build(Path(sys.argv[1]), download())
    print(f"wrote {sys.argv[1]}/voice_detector")
