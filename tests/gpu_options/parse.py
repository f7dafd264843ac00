"""Gives options to the parsers of the ONNX Runtime on the path: `python parse.py < cases.json > answers.json`.

A case is [provider, options, entries of the session, entries of its runs]. Its answer is the text of the refusal, or
null where all were parsed: a session on a GPU then fails at its first call to a device; one on the CPU runs, or finds
that it has no memory of a GPU.
Trident's own modules are not imported.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi

NO_DEVICE = "stand-in: no device"
NO_ARENA = "Did not find an arena based allocator registered for device-id combination"
CPU = "CPUExecutionProvider"
FATAL = 4


def identity() -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def refusal(
    model: bytes, provider: str, options: dict[str, str], of_session: dict[str, str], of_runs: dict[str, str]
) -> str | None:
    session_options, run_options = capi.SessionOptions(), capi.RunOptions()
    session_options.log_severity_level = run_options.log_severity_level = FATAL
    try:
        for key, value in of_session.items():
            session_options.add_session_config_entry(key, value)
        session = capi.InferenceSession(session_options, model, False, False)
        # What onnxruntime.InferenceSession does, less the registration of TensorRT's plugins.
        providers: dict[str, dict[str, str]] = {provider: options, CPU: {}}
        session.initialize_session(list(providers), list(providers.values()), set())
        for key, value in of_runs.items():
            run_options.add_run_config_entry(key, value)
        session.run(["y"], {"x": np.zeros(1, np.float32)}, run_options)
    except Exception as error:  # the bindings raise what they like
        return None if NO_DEVICE in str(error) or NO_ARENA in str(error) else f"{type(error).__name__}: {error}"
    return None if provider == CPU else f"the provider was left out, the session has {session.get_providers()}"


if __name__ == "__main__":
    content = identity()
    capi.set_default_logger_severity(FATAL)
    json.dump([refusal(content, *case) for case in json.load(sys.stdin)], sys.stdout)
