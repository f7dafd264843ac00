"""Gives options to the parsers of the ONNX Runtime on the path: `python parse.py < cases.json > answers.json`.

A case is [provider, options]. Its answer is the text of the refusal, or null where the options were parsed: then the
session fails at its first call to a device. Trident's own modules are not imported.
"""

from __future__ import annotations

import json
import sys

import onnx
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi

NO_DEVICE = "stand-in: no device"
FATAL = 4


def identity() -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def refusal(model: bytes, provider: str, options: dict[str, str]) -> str | None:
    session_options = capi.SessionOptions()
    session_options.log_severity_level = FATAL
    try:
        session = capi.InferenceSession(session_options, model, False, False)
        # What onnxruntime.InferenceSession does, less the registration of TensorRT's plugins.
        session.initialize_session([provider, "CPUExecutionProvider"], [options, {}], set())
    except Exception as error:  # the bindings raise what they like
        return None if NO_DEVICE in str(error) else f"{type(error).__name__}: {error}"
    return f"the provider was left out, the session has {session.get_providers()}"


if __name__ == "__main__":
    capi.set_default_logger_severity(FATAL)
    content = identity()
    json.dump([refusal(content, *case) for case in json.load(sys.stdin)], sys.stdout)
