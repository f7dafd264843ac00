"""Python models as they are loaded: `auto_complete_config`, `initialize` and its arguments, wrong files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers, http
from tests.triton_answers.python_models import without_places, write_model

OPTIONS = ("--model-control-mode=explicit",)
REFUSED = "what auto_complete_config returns is refused if it is wrong; Triton ignores it"
NO_IMPORTS = "the frames of the import system are left out"


def failed(name: str, reason: str) -> Any:
    text = f"load failed for model '{name}': version 1 is at UNAVAILABLE state: {reason};\n"
    return {"status": 400, "type": "application/json", "body": {"error": text}}


OTHERWISE: dict[str, tuple[str, Any]] = {
    f"loads: {name}": (why, failed(name, reason))
    for name, (why, reason) in {
        "completed_wrong": (
            REFUSED,
            "Invalid argument: Invalid config override: Failed to parse input field: Failed to parse data_type field: "
            "Invalid enum value TYPE_FP33 for enum type inference.DataType at ModelConfig.input[0].data_type..",
        ),
        "syntax": (
            "the text has the place of the error",
            "Internal: SyntaxError: invalid syntax (model.py, line 2)\n\nAt:\n  model.py: column 22 of "
            "'def execute(self requests):'\n",
        ),
        "raises_at_import": (NO_IMPORTS, "Internal: ValueError: wrong\n\nAt:\n  model.py: <module>\n"),
    }.items()
}

MODEL = """
import json
import os
import sys
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    {body}

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str(self.shown())], np.object_))])]

    def shown(self):
        return "nothing"
"""
ANSWER = 'output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
CONFIG = 'backend: "python"\ninstance_group [ { kind: KIND_CPU } ]\n' + ANSWER
COMPLETE = "@staticmethod\n    def auto_complete_config(config):\n        "
INITIALIZE = "def initialize(self, args):\n        "
FULL = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1, 4 ] optional: true } ]
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
max_batch_size: 4
dynamic_batching { preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 100 }
parameters { key: "colour" value: { string_value: "blue" } }
version_policy { all { } }
"""

# By name: the body of the class, and the configuration.
LOADED: dict[str, tuple[str, str]] = {
    "as_dict_of_all": (COMPLETE + "raise ValueError(json.dumps(config.as_dict(), sort_keys=True))", CONFIG + FULL),
    "completed": (
        COMPLETE
        + "config.add_input({'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [4]})\n        "
        + "config.add_input({'name': 'B', 'data_type': 'TYPE_INT8', 'dims': [-1], 'optional': True})\n        "
        + "config.add_output({'name': 'OUT2', 'data_type': 'TYPE_BOOL', 'dims': [1]})\n        "
        + "config.set_max_batch_size(8)\n        config.set_dynamic_batching()\n        "
        + "config.set_model_transaction_policy({'decoupled': True})\n        return config",
        CONFIG,
    ),
    "completed_none": (COMPLETE + "return None", CONFIG),
    "completed_dict": (COMPLETE + "return config.as_dict()", CONFIG),
    "completed_wrong": (
        COMPLETE + "config.add_input({'name': 'A', 'data_type': 'TYPE_FP33', 'dims': [4]})\n        return config",
        CONFIG,
    ),
    "completed_directly": (
        COMPLETE + "config.as_dict()['parameters'] = {'a': {'string_value': 'b'}}\n        return config",
        CONFIG,
    ),
    "arguments_of_all": (
        INITIALIZE + "self.shown = lambda: json.dumps(args | {'model_repository': ''})",
        CONFIG + FULL,
    ),
    "raises": (INITIALIZE + "raise ValueError('wrong')", CONFIG),
    "exits": (INITIALIZE + "sys.exit(3)", CONFIG),
    "asks": (
        INITIALIZE + "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='m').exec()",
        CONFIG,
    ),
    "ends": ("def finalize(self):\n        raise ValueError('wrong')", CONFIG),
}
FILES: dict[str, tuple[str, str, str]] = {
    "no_class": ("model.py", "x = 1\n", CONFIG),
    "syntax": ("model.py", "class TritonPythonModel:\n    def execute(self requests):\n", CONFIG),
    "raises_at_import": ("model.py", "raise ValueError('wrong')\n", CONFIG),
    "no_execute": ("model.py", "class TritonPythonModel:\n    pass\n", CONFIG),
    "other_ending": ("model.txt", "x = 1\n", CONFIG + 'default_model_filename: "model.txt"\n'),
    "inner_file": (
        "model.py",
        "from .inner import *\nfrom inner import number\nfrom beside import other\n"
        + MODEL.format(body="shown = lambda self: [number, other]"),
        CONFIG,
    ),
}


def write_models(folder: Path) -> None:
    for name, (body, config) in LOADED.items():
        write_model(folder, name, MODEL.format(body=body), config)
    for name, (file, text, config) in FILES.items():
        write_model(folder, name, "", config)
        (folder / name / "1" / "model.py").unlink()
        (folder / name / "1" / file).write_text(text)
    (folder / "inner_file" / "1" / "inner.py").write_text("number = 5\n")
    (folder / "inner_file" / "beside.py").write_text("other = 6\n")


def load(server: ServerProcess, name: str) -> Any:
    return without_places(http(server, "POST", f"/v2/repository/models/{name}/load", b""))


def ask_loads(server: ServerProcess) -> Answers:
    """The answer to the load, and what the loaded model shows."""

    def ask(name: str) -> Any:
        loaded = load(server, name)
        if loaded["status"] != 200:
            return loaded
        answered = without_places(http(server, "POST", f"/v2/models/{name}/infer", {"inputs": INPUTS.get(name, [])}))
        return {"loaded": loaded, "infer": answered}

    names = [*LOADED, *FILES]
    with ThreadPoolExecutor(4) as threads:
        return dict(zip(names, threads.map(ask, names), strict=True))


INPUTS = {"arguments_of_all": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["x"]}]}


def ask_completed(server: ServerProcess) -> Answers:
    answers = {}
    for name in ("completed", "completed_directly"):
        load(server, name)
        answers[name] = http(server, "GET", f"/v2/models/{name}/config")
        answers[f"{name}: metadata"] = http(server, "GET", f"/v2/models/{name}")
    return answers


def ask_unloads(server: ServerProcess) -> Answers:
    load(server, "ends")
    return {"answer": http(server, "POST", "/v2/repository/models/ends/unload", b"")}
