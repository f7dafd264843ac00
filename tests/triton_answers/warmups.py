"""Warmup: what a model gets from each kind of sample, and samples that fail a load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from tests.contract.sequences.sequence_models import controls
from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.held import counts, executions, refusal, tensors, write_held
from tests.unit.onnx_models import build, identity, strings, tensor, write_version

ONE = "instance_group { count: 1 kind: KIND_CPU } "
PAIR = tensors("input", "INPUT INT32 -1", "TEXT STRING 2") + tensors("output", "OUTPUT INT32 -1")


def sample(inputs: dict[str, str], batch: str = "batch_size: 1", name: str = "a sample", more: str = "") -> str:
    """`inputs` are e.g. {"INPUT": "INT32 2 zero_data: true"}."""
    found = ""
    for input_name, text in inputs.items():
        datatype, dims, *data = text.split(" ", 2)
        found += (
            f'inputs {{ key: "{input_name}" value {{ data_type: TYPE_{datatype} dims: [ {dims} ] {"".join(data)} }} }} '
        )
    return f'model_warmup {{ name: "{name}" {batch} {found} {more} }} '


ZEROS = {"INPUT": "INT32 3 zero_data: true", "TEXT": "STRING 2 zero_data: true"}
FILES = {"INPUT": 'INT32 2 input_data_file: "numbers"', "TEXT": 'STRING 2 input_data_file: "texts"'}
SAMPLES = {
    "zeros": sample(ZEROS),
    "files": sample(FILES),
    "zeros false": sample({"INPUT": "INT32 3 zero_data: false", "TEXT": "STRING 2 zero_data: false"}),
    "batch of 3": sample(ZEROS, "batch_size: 3"),
    "files of 2": sample(FILES, "batch_size: 2"),
    "batch of 0": sample(ZEROS, "batch_size: 0"),
    "no batch": sample(ZEROS, ""),
    "twice": sample(ZEROS, more="count: 2"),
    "count 0": sample(ZEROS, more="count: 0"),
    "two samples": sample(FILES, name="first") + sample(ZEROS, name="second"),
    "same name": sample(FILES) + sample(ZEROS),
    "no name": sample(ZEROS, name=""),
    "zero dims": sample({"INPUT": "INT32 0 zero_data: true", "TEXT": "STRING 2 zero_data: true"}),
    "long file": sample({"INPUT": 'INT32 1 input_data_file: "numbers"', "TEXT": "STRING 2 zero_data: true"}),
}
REFUSED = {
    "file outside": sample({"INPUT": 'INT32 1 input_data_file: "../number"', "TEXT": "STRING 2 zero_data: true"}),
    "no dims": sample({"INPUT": "INT32  zero_data: true", "TEXT": "STRING 2 zero_data: true"}),
    "variable dims": sample({"INPUT": "INT32 -1 zero_data: true", "TEXT": "STRING 2 zero_data: true"}),
    "other dims": sample({"INPUT": "INT32 2,2 zero_data: true", "TEXT": "STRING 2 zero_data: true"}),
    "other size": sample({"INPUT": "INT32 2 zero_data: true", "TEXT": "STRING 3 zero_data: true"}),
    "other datatype": sample({"INPUT": "FP32 2 zero_data: true", "TEXT": "STRING 2 zero_data: true"}),
    "no datatype": sample({"INPUT": "INVALID 2 zero_data: true", "TEXT": "STRING 2 zero_data: true"}),
    "missing input": sample({"INPUT": "INT32 2 zero_data: true"}),
    "no data": sample({"INPUT": "INT32 2", "TEXT": "STRING 2 zero_data: true"}),
    "missing file": sample({"INPUT": 'INT32 2 input_data_file: "missing"', "TEXT": "STRING 2 zero_data: true"}),
    "short file": sample({"INPUT": 'INT32 5 input_data_file: "numbers"', "TEXT": "STRING 2 zero_data: true"}),
    "text file of one": sample({"INPUT": "INT32 1 zero_data: true", "TEXT": 'STRING 2 input_data_file: "text"'}),
    "text file of three": sample({"INPUT": "INT32 1 zero_data: true", "TEXT": 'STRING 2 input_data_file: "three"'}),
}
RANDOM = sample({"INPUT": "INT32 3 random_data: true", "TEXT": "STRING 2 random_data: true"})
DATATYPES = ("BOOL", "UINT8", "INT8", "INT16", "UINT64", "FP16", "FP32", "FP64", "STRING")
OPTIONS = ("--model-control-mode=explicit",)
FAILED = "failed to run warmup sample 'a sample': "
WHOLE = "a sample is a whole sequence, whose controls the scheduler provides"
WHOLE_SEQUENCE = {name: [[1], [1, 1]] for name in ("START", "READY", "END", "ID")} | {"INPUT": [[0], [1, 1]]}
OTHERWISE: dict[str, tuple[str, Any]] = {
    "seen: sequence": (WHOLE, ["loaded", [[WHOLE_SEQUENCE]]]),
    "seen: sequence_marks": (WHOLE, ["loaded", [[WHOLE_SEQUENCE]]]),
    "refused: no datatype": (
        "the cause is named",
        "warmup setting expects input 'INPUT' to have 'data_type' set",
    ),
    "refused: short file": (
        "with the space that is missing in Triton's text",
        "[request id: <id_unknown>] warmup setting expects 20 bytes, but the data provided from numbers only has 8 "
        "bytes",
    ),
    "counts: counts": (
        "no client sent what a warmup executes",
        {
            "inferences": 0,
            "executions": 0,
            "requests": dict.fromkeys(
                (
                    *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"),
                    *("cache_hit", "cache_miss"),
                ),
                0,
            ),
            "batches": [],
        },
    ),
}


def model_name(name: str) -> str:
    return name.replace(" ", "_")


def with_files(folder: Path) -> None:
    (folder / "warmup").mkdir()
    (folder / "number").write_bytes(b"\x07\0\0\0")
    (folder / "warmup" / "numbers").write_bytes(b"\x01\0\0\0\x02\0\0\0")
    (folder / "warmup" / "texts").write_bytes(b"\x01\0\0\0a\x02\0\0\0bc")
    (folder / "warmup" / "text").write_bytes(b"\x01\0\0\0a")
    (folder / "warmup" / "three").write_bytes(b"\x01\0\0\0a\x02\0\0\0bc\x01\0\0\0d")


def pair() -> onnx.ModelProto:
    return build(
        [helper.make_node("Identity", [name], [f"OUT_{name}"]) for name in ("INPUT", "TEXT")],
        [tensor("INPUT", "INT32", ["batch", "n"]), tensor("TEXT", "BYTES", ["batch", 2])],
        [tensor("OUT_INPUT", "INT32", ["batch", "n"]), tensor("OUT_TEXT", "BYTES", ["batch", 2])],
    )


def write_models(folder: Path) -> None:
    write_held(folder, "all", f"max_batch_size: 4 {PAIR} {''.join(SAMPLES.values())}")
    with_files(folder / "all")
    write_held(folder, "random", f"max_batch_size: 4 {PAIR} {RANDOM}")
    for name, text in REFUSED.items():
        write_version(pair(), folder, model_name(name), f"max_batch_size: 4 {ONE} {text}")
        with_files(folder / model_name(name))
    unbatched = f"max_batch_size: 0 {PAIR}"
    write_held(folder, "unbatched", unbatched + sample(ZEROS))
    optional = tensors("input", "INPUT INT32 1", "MORE INT32 1 optional: true") + tensors("output", "OUTPUT INT32 1")
    write_held(folder, "optional", f"max_batch_size: 4 {optional} " + sample({"INPUT": "INT32 1 zero_data: true"}))
    reshaped = tensors("input", "INPUT INT32 4 reshape: { shape: [ 2, 2 ] }") + tensors("output", "OUTPUT INT32 2,2")
    write_held(folder, "reshaped", f"max_batch_size: 4 {reshaped} " + sample({"INPUT": "INT32 4 zero_data: true"}))
    one = tensors("input", "INPUT INT32 1") + tensors("output", "OUTPUT INT32 1")
    sequence = f"max_batch_size: 4 {one} sequence_batching {{ {controls('INT32', 'UINT64')} }} "
    marks = dict.fromkeys(("START", "READY", "END"), "INT32 1 zero_data: true") | {"ID": "UINT64 1 zero_data: true"}
    numbers = {"INPUT": "INT32 1 zero_data: true"}
    write_held(folder, "sequence", sequence + sample(numbers))
    write_held(folder, "sequence_marks", sequence + sample(numbers | marks))
    for datatype in DATATYPES:
        graph = strings() if datatype == "STRING" else identity(datatype)
        for kind in ("zero_data", "random_data"):
            config = "max_batch_size: 4 " + ONE + sample({"INPUT0": f"{datatype} 2 {kind}: true"})
            write_version(graph, folder, f"{datatype}_{kind}", config)


SEEN = ("all", "random", "unbatched", "optional", "reshaped", "sequence", "sequence_marks")


def ask_seen(server: ServerProcess) -> Answers:
    """What the executions of the samples got."""
    found: Answers = {}
    for name in SEEN:
        answer = refusal(server, name)
        batches = [batch for _, batch in executions(server, name)]
        if name == "random":
            batches = [[{key: each[key][1] for key in each} for each in batch] for batch in batches]
        found[name] = [answer, batches]
    return found


def ask_refused(server: ServerProcess) -> Answers:
    """Trident names the sample in each of them, Triton only if it was executed."""
    return {name: refusal(server, model_name(name)).removeprefix(FAILED).removesuffix("; ") for name in REFUSED}


def ask_datatypes(server: ServerProcess) -> Answers:
    return {
        f"{datatype} {kind}": refusal(server, f"{datatype}_{kind}")
        for datatype in DATATYPES
        for kind in ("zero_data", "random_data")
    }


def ask_counts(server: ServerProcess) -> Answers:
    server.json("POST", "/v2/repository/models/FP32_zero_data/load", {})
    return {"counts": counts(server, "FP32_zero_data")}
