"""Configurations that the server completes: of ONNX models of many forms, of Python models, and of parts of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers, http
from tests.triton_answers.servers import TritonProcess

OPTIONS = ("--model-control-mode=explicit",)
OTHERWISE: dict[str, tuple[str, Any]] = {
    "types: type_BFLOAT16": (
        "newer releases serve it",
        {
            "config": {
                "name": "type_BFLOAT16",
                "max_batch_size": 4,
                "input": [{"name": "IN0", "data_type": "TYPE_BF16", "format": "FORMAT_NONE", "dims": [4]}],
                "output": [{"name": "OUT0", "data_type": "TYPE_BF16", "dims": [4]}],
                "dynamic_batching": {"preferred_batch_size": [4]},
                "instance_group": [{"name": "type_BFLOAT16", "kind": "KIND_CPU", "count": 2}],
            }
        },
    ),
    "forms: form_zero": (
        "a dimension of 0 becomes variable",
        {
            "config": {
                "name": "form_zero",
                "max_batch_size": 4,
                "input": [{"name": "IN0", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [-1]}],
                "output": [{"name": "OUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                "dynamic_batching": {"preferred_batch_size": [4]},
                "instance_group": [{"name": "form_zero", "kind": "KIND_CPU", "count": 2}],
            }
        },
    ),
    "parts: part_latest_zero": (
        "the default of num_versions is 1",
        {
            "config": {
                "name": "part_latest_zero",
                "max_batch_size": 4,
                "input": [{"name": "IN0", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [4]}],
                "output": [{"name": "OUT0", "data_type": "TYPE_FP32", "dims": [4]}],
                "dynamic_batching": {"preferred_batch_size": [4]},
                "instance_group": [{"name": "part_latest_zero", "kind": "KIND_CPU", "count": 2}],
            }
        },
    ),
    "places: place_escaping_name": (
        "it is refused before it is looked for",
        {"poll": ("model file name '../model.onnx' must stay within the version directory for place_escaping_name")},
    ),
    "places: place_version_mixed": (
        "no version is read from a part of a name",
        {
            "load": [
                400,
                (
                    "load failed for model 'place_version_mixed': at least one version must be "
                    "available under the version policy of model 'place_version_mixed'\n"
                ),
            ]
        },
    ),
    "places: place_version_negative": (
        "no version is read from a part of a name",
        {
            "load": [
                400,
                (
                    "load failed for model 'place_version_negative': at least one version must be "
                    "available under the version policy of model 'place_version_negative'\n"
                ),
            ]
        },
    ),
    "versions: versions_specific_none 1": (
        "a model that failed to load says so",
        {
            "status": 503,
            "type": "application/json",
            "body": {
                "error": (
                    "model 'versions_specific_none' failed to load: Invalid argument: at least one "
                    "version must be available under the version policy of model "
                    "'versions_specific_none'"
                )
            },
        },
    ),
    "versions: versions_specific_none 2": (
        "a model that failed to load says so",
        {
            "status": 503,
            "type": "application/json",
            "body": {
                "error": (
                    "model 'versions_specific_none' failed to load: Invalid argument: at least one "
                    "version must be available under the version policy of model "
                    "'versions_specific_none'"
                )
            },
        },
    ),
    "versions: versions_specific_none 3": (
        "a model that failed to load says so",
        {
            "status": 503,
            "type": "application/json",
            "body": {
                "error": (
                    "model 'versions_specific_none' failed to load: Invalid argument: at least one "
                    "version must be available under the version policy of model "
                    "'versions_specific_none'"
                )
            },
        },
    ),
    "versions: versions_specific_none 12": (
        "a model that failed to load says so",
        {
            "status": 503,
            "type": "application/json",
            "body": {
                "error": (
                    "model 'versions_specific_none' failed to load: Invalid argument: at least one "
                    "version must be available under the version policy of model "
                    "'versions_specific_none'"
                )
            },
        },
    ),
}

Shape = list[int | str]
INTEGERS = [f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)]
DATATYPES = ["BOOL", *INTEGERS, "FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE", "STRING", "COMPLEX64", "FLOAT8E4M3FN"]
FORMS: dict[str, list[Shape]] = {
    "batch_only": [["b"]],
    "batch_variable": [["b", "n"]],
    "batch_image": [["b", 3, "h", "w"]],
    "batch_fixed_image": [["b", 3, 2, 2]],
    "fixed_one": [[1, 4]],
    "fixed_two": [[2, "n"]],
    "scalar": [[]],
    "one": [[1]],
    "anonymous": [[-1, 4]],
    "both_batch": [["b", 2], ["b", 3]],
    "second_fixed": [["b", 2], [1, 3]],
    "second_scalar": [["b", 2], []],
    "many_dims": [["b", 1, 2, 1, 2, 1, 2, 1]],
}


def graph(
    shapes: list[Shape], element: int = TensorProto.FLOAT, initializers: list[str] | None = None, suffix: str = ""
) -> bytes:
    """Identities IN0 -> OUT0, …; `initializers` are inputs IN… that have a value of two elements, too."""
    names = [f"{index}{suffix}" for index in range(len(shapes))]
    return model(
        [helper.make_node("Identity", [f"IN{name}"], [f"OUT{name}"]) for name in names],
        [helper.make_tensor_value_info(f"IN{name}", element, shape) for name, shape in zip(names, shapes, strict=True)],
        [
            helper.make_tensor_value_info(f"OUT{name}", element, shape)
            for name, shape in zip(names, shapes, strict=True)
        ],
        [numpy_helper.from_array(np.zeros(2, np.float32), name) for name in initializers or ()],
    )


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: list[Any] | None = None) -> bytes:
    made = helper.make_graph(nodes, "graph", inputs, outputs, initializers or [])
    opsets = [helper.make_opsetid("", 19)]
    return bytes(helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString())


def write_model(folder: Path, name: str, content: bytes | None, config: str | None = None, file: str = "") -> None:
    path = folder / name / (file or "1/model.onnx")
    path.parent.mkdir(parents=True)
    if content is not None:
        path.write_bytes(content)
    if config is not None:
        (folder / name / "config.pbtxt").write_text(config)


ROW = graph([["b", 4]])
FIXED = graph([[1, 4]])
INPUT = 'input { name: "IN0" data_type: TYPE_FP32 dims: 4 } '
OUTPUT = 'output { name: "OUT0" data_type: TYPE_FP32 dims: 4 } '
WHOLE = INPUT + OUTPUT
BACKEND = 'backend: "onnxruntime" '

PARTS = {
    "empty": "",
    "whole": WHOLE,
    "whole_batched": WHOLE + "max_batch_size: 8 ",
    "input_only": INPUT,
    "output_only": OUTPUT,
    "input_batched": INPUT + "max_batch_size: 8 ",
    "output_batched": OUTPUT + "max_batch_size: 1 ",
    "size_only": "max_batch_size: 7 ",
    "size_one": "max_batch_size: 1 ",
    "size_zero": "max_batch_size: 0 ",
    "size_negative": "max_batch_size: -1 ",
    "dynamic": "dynamic_batching { } ",
    "dynamic_preferred": "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] } ",
    "dynamic_delay": "dynamic_batching { max_queue_delay_microseconds: 100 preserve_ordering: true } ",
    "dynamic_one": "max_batch_size: 1 dynamic_batching { } ",
    "dynamic_whole": WHOLE + "dynamic_batching { } ",
    "dynamic_priorities": "max_batch_size: 8 dynamic_batching { priority_levels: 3 default_priority_level: 2 "
    "default_queue_policy { max_queue_size: 5 } priority_queue_policy { key: 1 value { timeout_action: DELAY "
    "default_timeout_microseconds: 9 allow_timeout_override: true } } } ",
    "sequence": "sequence_batching { } ",
    "sequence_direct": "max_batch_size: 4 sequence_batching { direct { max_queue_delay_microseconds: 3 "
    "minimum_slot_utilization: 0.5 } } ",
    "sequence_oldest": "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 2 } } ",
    "sequence_oldest_preferred": "max_batch_size: 4 sequence_batching { oldest { preferred_batch_size: 2 } "
    "max_sequence_idle_microseconds: 5 } ",
    "sequence_iterative": "sequence_batching { iterative_sequence: true } ",
    "name": 'name: "part_name" ',
    "platform": 'platform: "onnxruntime_onnx" ',
    "backend": BACKEND,
    "platform_and_backend": BACKEND + 'platform: "onnxruntime_onnx" ',
    "filename": 'default_model_filename: "model.onnx" ',
    "latest_zero": "version_policy { latest { } } ",
    "latest": "version_policy { latest { num_versions: 2 } } ",
    "all": "version_policy { all { } } ",
    "specific": "version_policy { specific { versions: [ 1 ] } } ",
    "specific_more": "version_policy { specific { versions: [ 1, 5 ] } } ",
    "policy_empty": "version_policy { } ",
    "group_cpu": "instance_group { kind: KIND_CPU } ",
    "group_count": "instance_group { count: 3 kind: KIND_CPU } ",
    "group_count_only": "instance_group { count: 1 } ",
    "group_empty": "instance_group { } ",
    "group_negative": "instance_group { count: -2 kind: KIND_CPU } ",
    "group_model": "instance_group { kind: KIND_MODEL } ",
    "group_auto_gpu": "instance_group { gpus: 0 } ",
    "group_names": 'instance_group { name: "one" count: 1 } instance_group { count: 1 } instance_group { name: "x" } ',
    "group_more": 'instance_group { kind: KIND_CPU count: 1 host_policy: "p" rate_limiter { resources { name: "R" '
    "count: 2 global: true } priority: 3 } } ",
    "group_passive": "instance_group { count: 1 } instance_group { passive: true count: 1 } ",
    "level": "optimization { graph { level: 1 } } ",
    "priority": "optimization { priority: PRIORITY_MIN } ",
    "pinned": "optimization { input_pinned_memory { enable: false } output_pinned_memory { } } ",
    "gather": "optimization { gather_kernel_buffer_threshold: 4 eager_batching: true cuda { graphs: true } } ",
    "labels": 'output { name: "OUT0" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" } ',
    "parameters": 'parameters { key: "k" value { string_value: "v" } } '
    'parameters { key: "intra_op_thread_count" value { string_value: "1" } } ',
    "tags": 'metric_tags { key: "a" value: "b" } ',
    "cc": 'cc_model_filenames { key: "7.5" value: "model.onnx" } ',
    "warmup": 'max_batch_size: 4 model_warmup { name: "w" batch_size: 2 count: 2 inputs { key: "IN0" '
    "value { data_type: TYPE_FP32 dims: 4 zero_data: true } } } ",
    "cache": "response_cache { enable: true } ",
    "cache_off": "response_cache { enable: false } ",
    "policy": "model_transaction_policy { decoupled: false } ",
    "reshape": 'max_batch_size: 2 input { name: "IN0" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: 4 } } ',
    "format": 'input { name: "IN0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 4, 1, 1 ] reshape { shape: [ -1, '
    "4 ] } } ",
    "ragged": 'max_batch_size: 2 input { name: "IN0" data_type: TYPE_FP32 dims: 4 allow_ragged_batch: true } ',
}
ON_FIXED = (
    *("empty", "whole", "size_only", "size_one", "size_zero"),
    *("dynamic", "sequence", "sequence_oldest", "output_only"),
)

PLACES: dict[str, tuple[str, str | None]] = {
    "other_name": ("1/other.onnx", 'default_model_filename: "other.onnx" '),
    "other_name_backend": ("1/other.onnx", BACKEND + 'default_model_filename: "other.onnx" '),
    "other_name_platform": ("1/other.onnx", 'platform: "onnxruntime_onnx" default_model_filename: "other.onnx" '),
    "missing_name": ("1/model.onnx", BACKEND + 'default_model_filename: "none.onnx" '),
    "unnamed_file": ("1/other.onnx", None),
    "unnamed_file_backend": ("1/other.onnx", BACKEND),
    "folder": ("1/model.onnx/model.onnx", None),
    "folder_other": ("1/model.onnx/other.onnx", None),
    "nested": ("1/in/model.onnx", BACKEND + 'default_model_filename: "in/model.onnx" '),
    "no_version": ("model.onnx", None),
    "no_version_backend": ("model.onnx", BACKEND),
    "version_zero": ("0/model.onnx", None),
    "version_three": ("3/model.onnx", None),
    "version_zeros": ("003/model.onnx", None),
    "version_word": ("abc/model.onnx", None),
    "version_mixed": ("1abc/model.onnx", None),
    "version_negative": ("-1/model.onnx", None),
    "version_large": ("9999999999/model.onnx", None),
    "suffix.onnxruntime": ("1/other.onnx", None),
    "suffix.more.onnxruntime": ("1/model.more.onnxruntime", None),
    "suffix.nothing": ("1/other.onnx", None),
    "dotted.python": ("1/model.onnx", None),
    "wrong_pair": ("1/model.onnx", BACKEND + 'platform: "tensorrt_plan" '),
    "wrong_pair_own": ("1/model.onnx", BACKEND + 'platform: "mine" '),
    "unknown_platform": ("1/model.onnx", 'platform: "mine" '),
    "unknown_backend": ("1/model.onnx", 'backend: "mine" '),
    "wrong_name": ("1/model.onnx", 'name: "another" '),
    "escaping_name": ("1/model.onnx", BACKEND + 'default_model_filename: "../model.onnx" '),
    "ensemble_platform": ("1/model.onnx", 'platform: "ensemble" '),
    "configs_first": ("configs/x.pbtxt", None),
}
PYTHON_CODE = """
class TritonPythonModel:
{complete}
    def execute(self, requests):
        return [None] * len(requests)
"""
COMPLETE = """
    @staticmethod
    def auto_complete_config(config):
{body}
        return config
"""
# The bodies of auto_complete_config; None for a model without one.
PYTHON: dict[str, tuple[str | None, str | None]] = {
    "none_whole": (None, 'backend: "python" ' + WHOLE),
    "row": (
        "config.set_max_batch_size(4); config.set_dynamic_batching()\n"
        'config.add_input({"name": "I", "data_type": "TYPE_FP32", "dims": [4], "optional": True})\n'
        'config.add_output({"name": "O", "data_type": "TYPE_STRING", "dims": [1, -1]})',
        None,
    ),
    "input_type": ('config.add_input({"name": "IN0", "data_type": "TYPE_FP16", "dims": [4]})', WHOLE),
    "raises": ('raise ValueError("no")', None),
}
ENSEMBLE = (
    'platform: "ensemble" max_batch_size: 4 '
    + WHOLE
    + 'ensemble_scheduling { step { model_name: "part_size_only" model_version: -1 input_map { key: "IN0" '
    'value: "IN0" } output_map { key: "OUT0" value: "OUT0" } } } '
)


def write_models(folder: Path) -> None:
    for name in DATATYPES:
        write_model(folder, f"type_{name}", graph([["b", 4]], getattr(TensorProto, name)))
    for name, shapes in FORMS.items():
        write_model(folder, f"form_{name}", graph(shapes))
    write_model(folder, "form_string_scalar", graph([[]], TensorProto.STRING))
    write_model(folder, "form_zero", graph([["b", 0]]))
    write_model(folder, "form_no_type", b"")
    write_model(folder, "form_initializer", graph([["b", 4], [2]], initializers=["IN1"]))
    total = helper.make_node("ReduceSum", ["IN0"], ["OUT0"], keepdims=0)
    tensors = [helper.make_tensor_value_info(n, 1, s) for n, s in (("IN0", ["b", 4]), ("OUT0", []))]
    write_model(folder, "form_scalar_output", model([total], tensors[:1], tensors[1:]))
    constant = numpy_helper.from_array(np.zeros((2, 2), np.float32), "C")
    value = [helper.make_tensor_value_info("OUT0", 1, [2, 2])]
    write_model(folder, "form_no_input", model([helper.make_node("Identity", ["C"], ["OUT0"])], [], value, [constant]))
    sequence = helper.make_node("SequenceConstruct", ["IN0"], ["OUT0"])
    output = [helper.make_tensor_sequence_value_info("OUT0", 1, ["b", 4])]
    write_model(folder, "form_sequence", model([sequence], tensors[:1], output))
    for name, config in PARTS.items():
        write_model(folder, f"part_{name}", ROW, config)
    (folder / "part_labels" / "labels.txt").write_text("a\nb\n")
    for name in ON_FIXED:
        write_model(folder, f"fixed_{name}", FIXED, PARTS[name])
    for name, (file, config) in PLACES.items():
        write_model(folder, f"place_{name}", ROW, config, file)
    write_model(folder, "place_empty", None)
    (folder / "place_nothing").mkdir()
    (folder / "place_only_config").mkdir()
    (folder / "place_only_config" / "config.pbtxt").write_text(BACKEND + WHOLE)
    (folder / "place_backend_in_name.onnxruntime" / "1").mkdir(parents=True)
    for versions in ("latest", "all", "specific", "specific_none", "two"):
        policies = {"two": "version_policy { latest { num_versions: 2 } }", "all": "version_policy { all { } }"}
        policies["specific"] = "version_policy { specific { versions: [ 2, 3 ] } }"
        policies["specific_none"] = "version_policy { specific { versions: [ 7 ] } }"
        name = f"versions_{versions}"
        write_model(folder, name, ROW, policies.get(versions))
        for number, content in (("3", FIXED), ("12", graph([["b", 5]]))):
            (folder / name / number).mkdir()
            (folder / name / number / "model.onnx").write_bytes(content)
    for name, (body, config) in PYTHON.items():
        lines = [f"        {line}" for line in (body or "").splitlines()]
        complete = "" if body is None else COMPLETE.format(body="\n".join(lines))
        code = PYTHON_CODE.format(complete=complete).encode()
        write_model(folder, f"python_{name}", code, config, "1/model.py")
    write_model(folder, "python_syntax", b"class TritonPythonModel:\n  def execute(self):\nx", None, "1/model.py")
    write_model(folder, "both_files", PYTHON_CODE.format(complete="").encode(), None, "1/model.py")
    (folder / "both_files" / "1" / "model.onnx").write_bytes(ROW)
    write_model(folder, "ensemble", None, ENSEMBLE, "1/x")
    write_model(folder, "ensemble_groups", None, ENSEMBLE + "version_policy { all { } } ", "1/x")
    shutil.copytree(folder / "ensemble", folder / "ensemble_named")
    (folder / "ensemble_named" / "config.pbtxt").write_text('name: "ensemble_named" ' + ENSEMBLE)


def short(value: Any) -> Any:
    """`value` without members that have the default of their type, which every configuration has."""
    if isinstance(value, dict):
        found = {key: short(member) for key, member in value.items()}
        return {key: member for key, member in found.items() if member not in ({}, [], "", 0, None) or key == "reshape"}
    if isinstance(value, list):
        entries = [short(entry) for entry in value]
        named = all(isinstance(entry, dict) and "name" in entry for entry in entries)
        return sorted(entries, key=lambda entry: str(entry["name"])) if named else entries
    return value


def load(server: ServerProcess, name: str, parameters: Mapping[str, Any] | None = None) -> Any:
    """The answer to a load: the status alone, or with the error; without the folder of the models."""
    answer = http(server, "POST", f"/v2/repository/models/{name}/load", {"parameters": parameters or {}})
    if answer["status"] == 200:
        return 200
    return [answer["status"], without_folder(server, answer["body"]["error"])]


def without_folder(server: ServerProcess, text: str) -> str:
    """`text` without the folder of the models, and without the lines of a traceback."""
    return re.sub(r"\n\nAt:\n(  .*\n)+", "", text.replace(server.location, "MODELS"))


def rows(server: ServerProcess, name: str) -> list[Any]:
    """The rows of the index of the versions of a model. Trident has one for a model of which it found none, too."""
    index = http(server, "POST", "/v2/repository/index", {})["body"]
    return [
        [row["version"], row["state"], without_folder(server, row.get("reason", ""))]
        for row in index
        if row["name"] == name and "version" in row
    ]


# Of most models; None stands for a member that is missing.
USUAL = {
    "platform": "onnxruntime_onnx",
    "backend": "onnxruntime",
    "default_model_filename": "model.onnx",
    "version_policy": {"latest": {"num_versions": 1}},
    "optimization": {
        "priority": "PRIORITY_DEFAULT",
        "input_pinned_memory": {"enable": True},
        "output_pinned_memory": {"enable": True},
    },
}


def config_of(server: ServerProcess, name: str) -> Any:
    """What is unusual in the configuration of a model; the status if it has none."""
    answer = http(server, "GET", f"/v2/models/{name}/config")
    if answer["status"] != 200:
        return answer["status"]
    found = dict.fromkeys(USUAL) | short(answer["body"])
    return {key: value for key, value in found.items() if value != USUAL.get(key, "")}


def loaded(server: ServerProcess, name: str) -> Answers:
    """The configuration of a model that loads, or else why it does not, and what else the index says of it."""
    answer = load(server, name)
    if answer == 200:
        return {"config": config_of(server, name)}
    if answer[0] == 500:
        return {"poll": poll_failure(server, name)}
    others = [row for row in rows(server, name) if row[0] != "1" or row[1] != "UNAVAILABLE" or row[2] not in answer[1]]
    return {"load": answer, "index": others} if others else {"load": answer}


def poll_failure(server: ServerProcess, name: str) -> str:
    """Why a model could not be polled. Triton says so in its log only, Trident in the index."""
    if not isinstance(server, TritonProcess):
        index = http(server, "POST", "/v2/repository/index", {})["body"]
        text = next(without_folder(server, row["reason"]).partition(": ")[2] for row in index if row["name"] == name)
        return re.sub(r"(failed to read text proto from \S+): .*", r"\1", text)
    start = f"Poll failed for model directory '{name}': "
    lines = [
        json.loads(line.partition("] ")[2])
        for line in server.log.read_text(errors="backslashreplace").splitlines()
        if start in line
    ]
    return without_folder(server, lines[-1].removeprefix(start)) if lines else "not said"


def all_loaded(server: ServerProcess, prefix: str) -> Answers:
    names = sorted(path.name for path in server.repository.iterdir() if path.name.startswith(prefix))
    return {name: loaded(server, name) for name in names}


def ask_types(server: ServerProcess) -> Answers:
    return all_loaded(server, "type_")


def ask_forms(server: ServerProcess) -> Answers:
    return all_loaded(server, "form_")


def ask_parts(server: ServerProcess) -> Answers:
    return all_loaded(server, "part_") | all_loaded(server, "fixed_")


def ask_places(server: ServerProcess) -> Answers:
    return all_loaded(server, "place_")


def ask_versions(server: ServerProcess) -> Answers:
    answers: Answers = {}
    for path in sorted(server.repository.glob("versions_*")):
        answers[path.name] = [load(server, path.name), rows(server, path.name)]
        for version in (1, 2, 3, 12):
            answer = http(server, "GET", f"/v2/models/{path.name}/versions/{version}/config")
            answers[f"{path.name} {version}"] = answer["body"].get("input") or answer
    return answers


def ask_python(server: ServerProcess) -> Answers:
    return all_loaded(server, "python_") | all_loaded(server, "both_")


def ask_ensembles(server: ServerProcess) -> Answers:
    return all_loaded(server, "ensemble")


def ask_whole(server: ServerProcess) -> Answers:
    """A configuration with everything that the server prints."""
    return {"whole": http(server, "GET", "/v2/models/part_dynamic_priorities/config")}
