"""Ensembles: maps that fit or not, errors of steps, outputs that are left out, batches, sequences, decoupled steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonclient.grpc import service_pb2

from tests.contract.ensembles.ensemble_models import ensemble_config, step
from tests.contract.sequences.sequence_models import controls, echo
from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers, http, stream
from tests.triton_answers.held import counts, document, infer, refusal, tensors, write_held
from tests.unit.onnx_models import add_sub, identity, picky, strings, write_version

ONE = "instance_group { count: 1 kind: KIND_CPU } "
INT32, FP32, STRING = "TYPE_INT32", "TYPE_FP32", "TYPE_STRING"
# For decoupled steps: as many responses as INPUT says, with 0, 1, …
COUNTING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()[0, 0])
            for number in range(count):
                output = pb_utils.Tensor("OUTPUT", np.full((1, 1), number, np.int32))
                sender.send(pb_utils.InferenceResponse([output]))
            if count < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("below 0")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Answers with OUTPUT only if INPUT is not 0, and fails below 0.
PARTIAL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            outputs = [pb_utils.Tensor("OTHER", value + 1)]
            if value[0, 0] > 0:
                outputs.append(pb_utils.Tensor("OUTPUT", value))
            error = pb_utils.TritonError("below 0", pb_utils.TritonError.NOT_FOUND)
            responses.append(pb_utils.InferenceResponse(outputs, error=error if value[0, 0] < 0 else None))
        return responses
"""


ECHOED = tensors("input", "INPUT INT32 1") + tensors(
    "output", *[f"OUT_{name} INT32 1" for name in ("INPUT", "START", "END", "READY")], "OUT_ID UINT64 1"
)


def steps_of(repository: Path) -> None:
    """The models of the steps."""
    write_version(add_sub("INT32", 4), repository, "add_sub", f"max_batch_size: 8 {ONE} dynamic_batching {{ }}")
    write_version(identity("INT32", ["batch", "n"]), repository, "ints", f"max_batch_size: 8 {ONE}")
    write_version(identity("INT32", ["batch", "n"]), repository, "ints_of_4", f"max_batch_size: 4 {ONE}")
    unbatched = tensors("input", "INPUT0 INT32 -1") + tensors("output", "OUTPUT0 INT32 -1")
    write_version(identity("INT32", ["n"]), repository, "unbatched", f"max_batch_size: 0 {unbatched} {ONE}")
    write_version(identity("FP32", ["batch", "n"]), repository, "floats", f"max_batch_size: 8 {ONE}")
    write_version(identity("INT32", ["batch", 2, "n"]), repository, "planes", f"max_batch_size: 8 {ONE}")
    write_version(strings(["batch", "n"]), repository, "texts", f"max_batch_size: 8 {ONE}")
    write_version(picky(), repository, "picky", f"max_batch_size: 8 {ONE}")
    sequence = f"max_batch_size: 4 {ONE} sequence_batching {{ max_sequence_idle_microseconds: 100000000 "
    write_version(
        echo("INT32", "UINT64"), repository, "sequence", f"{ECHOED} {sequence} {controls('INT32', 'UINT64')} }}"
    )
    optional = tensors("input", "INPUT INT32 1", "MORE INT32 1 optional: true") + tensors("output", "OUTPUT INT32 1")
    write_held(repository, "optional", f"max_batch_size: 4 {optional}")
    for name, source, config in (
        ("counting", COUNTING, "model_transaction_policy { decoupled: true } " + tensors("output", "OUTPUT INT32 1")),
        ("partial", PARTIAL, tensors("output", "OUTPUT INT32 1", "OTHER INT32 1")),
    ):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(source)
        config = f'backend: "python" max_batch_size: 4 {tensors("input", "INPUT INT32 1")} {config} {ONE}'
        (repository / name / "config.pbtxt").write_text(config)


def ints(name: str, before: str, after: str, **more: Any) -> str:
    return step(name, {"INPUT0": before}, {"OUTPUT0": after}, **more)


A, B = ("A", INT32, [-1]), ("B", INT32, [-1])
SUM = step("add_sub", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "SUM", "OUTPUT1": "DIFFERENCE"})
ENSEMBLES = {
    "chain": ([A], [B], [ints("ints", "A", "X"), ints("ints_of_4", "X", "B")], 4),
    "reversed": ([A], [B], [ints("ints_of_4", "X", "B"), ints("ints", "A", "X")], 4),
    "forked": (
        [("A", INT32, [4]), ("B", INT32, [4])],
        [("SUM", INT32, [4]), ("DIFFERENCE", INT32, [4]), ("COPY", INT32, [4])],
        [SUM, ints("ints", "A", "COPY")],
        8,
    ),
    "unused": (
        [("A", INT32, [4]), ("B", INT32, [4])],
        [("SUM", INT32, [4])],
        [step("add_sub", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "SUM"})],
        8,
    ),
    "to_unbatched": ([A], [B], [ints("ints", "A", "X"), ints("unbatched", "X", "B")], 1),
    "unbatched_first": ([A], [B], [ints("unbatched", "A", "X"), ints("unbatched", "X", "B")], 0),
    "nested": ([A], [B], [step("chain", {"A": "A"}, {"B": "X"}), ints("ints", "X", "B")], 4),
    "of_texts": (
        [("A", STRING, [-1])],
        [("B", STRING, [-1])],
        [ints("texts", "A", "X"), ints("texts", "X", "B")],
        8,
    ),
    "fails": (
        [("A", "TYPE_INT64", [1])],
        [("B", FP32, [1])],
        [step("picky", {"INDEX": "A"}, {"VALUE": "X"}), ints("floats", "X", "B")],
        8,
    ),
    "with_sequence": (
        [("A", INT32, [1])],
        [("B", INT32, [1]), ("START", INT32, [1]), ("END", INT32, [1]), ("ID", "TYPE_UINT64", [1])],
        [
            ints("ints", "A", "X"),
            step(
                "sequence", {"INPUT": "X"}, {"OUT_INPUT": "B", "OUT_START": "START", "OUT_END": "END", "OUT_ID": "ID"}
            ),
        ],
        4,
    ),
    "with_optional": (
        [("A", INT32, [1]), ("B", INT32, [1])],
        [("C", INT32, [1])],
        [step("optional", {"INPUT": "A", "MORE": "B"}, {"OUTPUT": "C"})],
        4,
    ),
    "without_optional": (
        [("A", INT32, [1])],
        [("C", INT32, [1])],
        [step("optional", {"INPUT": "A"}, {"OUTPUT": "C"})],
        4,
    ),
    "is_partial": (
        [("A", INT32, [1])],
        [("B", INT32, [1]), ("C", INT32, [1])],
        [step("partial", {"INPUT": "A"}, {"OUTPUT": "B", "OTHER": "C"})],
        4,
    ),
    "after_partial": (
        [("A", INT32, [1])],
        [("B", INT32, [1])],
        [step("partial", {"INPUT": "A"}, {"OUTPUT": "X"}), ints("ints", "X", "B")],
        4,
    ),
    "optional_after_partial": (
        [("A", INT32, [1])],
        [("B", INT32, [1]), ("C", INT32, [1])],
        [
            step("partial", {"INPUT": "A"}, {"OUTPUT": "X", "OTHER": "B"}),
            step("optional", {"INPUT": "B", "MORE": "X"}, {"OUTPUT": "C"}),
        ],
        4,
    ),
    "after_counting": (
        [("A", INT32, [1])],
        [("B", INT32, [1]), ("N", INT32, [1])],
        [step("counting", {"INPUT": "A"}, {"OUTPUT": "X"}), ints("ints", "X", "B"), ints("ints_of_4", "X", "N")],
        4,
    ),
    "counting_after_counting": (
        [("A", INT32, [1])],
        [("B", INT32, [1])],
        [step("counting", {"INPUT": "A"}, {"OUTPUT": "X"}), step("counting", {"INPUT": "X"}, {"OUTPUT": "B"})],
        4,
    ),
}
REFUSED = {
    "no steps": ([A], [B], [], 4),
    "no such model": ([A], [B], [ints("missing", "A", "B")], 4),
    "no such version": ([A], [B], [ints("ints", "A", "B", version=7)], 4),
    "no such input": ([A], [B], [step("ints", {"NO": "A"}, {"OUTPUT0": "B"})], 4),
    "no such output": ([A], [B], [step("ints", {"INPUT0": "A"}, {"NO": "B"})], 4),
    "input not mapped": (
        [("A", INT32, [4])],
        [("B", INT32, [4])],
        [step("add_sub", {"INPUT0": "A"}, {"OUTPUT0": "B"})],
        4,
    ),
    "no inputs mapped": ([A], [B], [step("ints", {}, {"OUTPUT0": "B"})], 4),
    "no outputs mapped": ([A], [B], [step("ints", {"INPUT0": "A"}, {}), ints("ints", "A", "B")], 4),
    "outputs to one": (
        [("A", INT32, [4])],
        [("B", INT32, [4])],
        [step("add_sub", {"INPUT0": "A", "INPUT1": "A"}, {"OUTPUT0": "B", "OUTPUT1": "B"})],
        4,
    ),
    "steps to one": ([A], [B], [ints("ints", "A", "B"), ints("ints_of_4", "A", "B")], 4),
    "step to input": ([A], [B], [ints("ints", "A", "A"), ints("ints", "A", "B")], 4),
    "input is output": ([A], [A], [ints("ints", "A", "A")], 4),
    "unused input": ([A, ("C", INT32, [-1])], [B], [ints("ints", "A", "B")], 4),
    "output from nowhere": ([A], [B, ("C", INT32, [-1])], [ints("ints", "A", "B")], 4),
    "step from nowhere": ([A], [B], [ints("ints", "X", "B")], 4),
    "unused tensor": ([A], [B], [ints("ints", "A", "B"), ints("ints", "A", "X")], 4),
    "circle": ([A], [B], [ints("ints", "B", "X"), ints("ints", "X", "B")], 4),
    "other datatype": ([A], [("B", FP32, [-1])], [ints("ints", "A", "B")], 4),
    "other datatype of input": ([("A", FP32, [-1])], [B], [ints("ints", "A", "B")], 4),
    "other datatype between": ([A], [("B", FP32, [-1])], [ints("ints", "A", "X"), ints("floats", "X", "B")], 4),
    "other rank": ([A], [("B", INT32, [-1, -1])], [ints("ints", "A", "B")], 4),
    "other rank between": ([A], [("B", INT32, [2, -1])], [ints("ints", "A", "X"), ints("planes", "X", "B")], 4),
    "other size": (
        [("A", INT32, [4])],
        [("B", INT32, [5])],
        [step("add_sub", {"INPUT0": "A", "INPUT1": "A"}, {"OUTPUT0": "B"})],
        4,
    ),
    "narrower output": ([A], [("B", INT32, [3])], [ints("ints", "A", "B")], 4),
    "larger batches": ([A], [B], [ints("ints_of_4", "A", "B")], 8),
    "batches to unbatched": ([A], [B], [ints("unbatched", "A", "B")], 4),
    "unbatched ensemble": ([A], [B], [ints("ints", "A", "B")], 0),
    "unbatched to batches": ([("A", INT32, [-1, -1])], [("B", INT32, [-1, -1])], [ints("ints", "A", "B")], 0),
    "itself": ([A], [B], [step("refused_itself", {"A": "A"}, {"B": "B"})], 4),
    "two counting": (
        [("A", INT32, [1])],
        [("B", INT32, [1])],
        [
            step("counting", {"INPUT": "A"}, {"OUTPUT": "X"}),
            step("counting", {"INPUT": "A"}, {"OUTPUT": "Y"}),
            step("optional", {"INPUT": "X", "MORE": "Y"}, {"OUTPUT": "B"}),
        ],
        4,
    ),
    "no model name": ([A], [B], [ints("", "A", "B")], 4),
    "no tensor name": ([A], [B], [ints("ints", "", "B")], 4),
    "empty output name": ([A], [B], [ints("ints", "A", ""), ints("ints", "A", "B")], 4),
    "version 0": ([A], [B], [ints("ints", "A", "B", version=0)], 4),
    "version -2": ([A], [B], [ints("ints", "A", "B", version=-2)], 4),
}
OTHER = {
    "no section": 'platform: "ensemble" max_batch_size: 4 '
    + tensors("input", "A INT32 1")
    + tensors("output", "B INT32 1"),
    "other platform": ensemble_config([A], [B], [ints("ints", "A", "B")], batch=4).replace(
        'platform: "ensemble"', 'platform: "onnxruntime_onnx"'
    ),
    "backend": 'backend: "ensemble" ' + ensemble_config([A], [B], [ints("ints", "A", "B")], batch=4),
    "instances": ONE + ensemble_config([A], [B], [ints("ints", "A", "B")], batch=4),
    "optimization": "optimization { priority: PRIORITY_MAX } "
    + ensemble_config([A], [B], [ints("ints", "A", "B")], batch=4),
    "decoupled": "model_transaction_policy { decoupled: true } "
    + ensemble_config([A], [B], [ints("ints", "A", "B")], batch=4),
    "warmup": 'model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_INT32 dims: [ 1 ] '
    "zero_data: true } } } " + ensemble_config([A], [B], [ints("ints", "A", "B")], batch=4),
    "no platform": ensemble_config([A], [B], [ints("ints", "A", "B")], batch=4).replace('platform: "ensemble"', ""),
    "no version of step": ensemble_config([A], [B], [ints("ints", "A", "B")], batch=4).replace("model_version: -1", ""),
}
STEPS = (
    *("add_sub", "ints", "ints_of_4", "unbatched", "floats", "planes", "texts", "picky", "sequence"),
    *("optional", "counting", "partial"),
)
OPTIONS = ("--model-control-mode=explicit", *[f"--load-model={name}" for name in (*STEPS, *ENSEMBLES)])
AT_LOAD = "a tensor has one source"
OTHERWISE: dict[str, tuple[str, Any]] = {
    "refused: no such input": (
        "each problem is named",
        "in ensemble refused_no_such_input, ensemble tensor A is mapping to non-existing input NO in model ints; in "
        "ensemble refused_no_such_input, input INPUT0 in model ints is not mapped to any ensemble tensors",
    ),
    "refused: step to input": (
        AT_LOAD,
        "ensemble tensor 'A' is an input of ensemble 'refused_step_to_input', so step 0 cannot write it",
    ),
    "refused: input is output": (
        AT_LOAD,
        "ensemble tensor 'A' is an input of ensemble 'refused_input_is_output', so step 0 cannot write it",
    ),
    "refused: itself": (
        "the whole circle is named",
        "circular dependency between ensembles: refused_itself -> refused_itself",
    ),
    "refused: two counting": (
        "the step is named, not the ensemble",
        "in ensemble refused_two_counting, step of model 'optional' receives inputs originated from different "
        "decoupled models",
    ),
}


def refused_name(name: str) -> str:
    return "refused_" + name.replace(" ", "_").replace("-", "minus")


def write_models(folder: Path) -> None:
    steps_of(folder)
    configs = {name: ensemble_config(*each[:3], batch=each[3]) for name, each in ENSEMBLES.items()}
    configs |= {refused_name(name): ensemble_config(*each[:3], batch=each[3]) for name, each in REFUSED.items()}
    configs |= {refused_name(name): config for name, config in OTHER.items()}
    for name, config in configs.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)


def ask_refused(server: ServerProcess) -> Answers:
    return {name: refusal(server, refused_name(name)) for name in (*REFUSED, *OTHER)}


def one(values: list[Any], name: str = "A", datatype: str = "INT32", items: int = 1, **more: Any) -> Any:
    return document([(name, datatype, [items, len(values) // items], values)], **more)


def wanting(*names: str) -> Any:
    return {"outputs": [{"name": name} for name in names]}


def ask_requests(server: ServerProcess) -> Answers:
    pair = [(name, "INT32", [1, 4], [1, 2, 3, 4]) for name in "AB"]
    asked = {
        "chain": ("chain", one([1, 2])),
        "chain with id": ("chain", one([1, 2], id="x", parameters={"priority": 3, "custom": "y"})),
        "chain of 4": ("chain", one([1, 2, 3, 4], items=4)),
        "chain of 5": ("chain", one([1, 2, 3, 4, 5], items=5)),
        "chain of 0": ("chain", document([("A", "INT32", [0, 1], [])])),
        "chain, no rank": ("chain", document([("A", "INT32", [2], [1, 2])])),
        "chain, other datatype": ("chain", one([1, 2], datatype="FP32")),
        "chain, unknown input": ("chain", one([1, 2], name="X")),
        "chain, other input": ("chain", document([("A", "INT32", [1, 1], [1]), ("X", "INT32", [1, 1], [1])])),
        "chain, no input": ("chain", document([])),
        "chain, inner output": ("chain", one([1, 2], **wanting("X"))),
        "chain, unknown output": ("chain", one([1, 2], **wanting("NO"))),
        "reversed": ("reversed", one([1, 2])),
        "forked": ("forked", document(pair)),
        "forked, one output": ("forked", document(pair, **wanting("COPY"))),
        "forked, two outputs": ("forked", document(pair, **wanting("COPY", "SUM"))),
        "forked, one input": ("forked", document(pair[:1])),
        "forked, two sizes": ("forked", document([pair[0], ("B", "INT32", [2, 4], 2 * [1, 2, 3, 4])])),
        "forked, wrong size": ("forked", document([pair[0], ("B", "INT32", [1, 3], [1, 2, 3])])),
        "unused": ("unused", document(pair)),
        "to unbatched": ("to_unbatched", one([1, 2])),
        "unbatched": ("unbatched_first", document([("A", "INT32", [2], [1, 2])])),
        "unbatched, with batch": ("unbatched_first", one([1, 2])),
        "nested": ("nested", one([1, 2])),
        "nested of 5": ("nested", one([1, 2, 3, 4, 5], items=5)),
        "texts": ("of_texts", one(["a", "", "ü"], datatype="BYTES")),
        "texts of 3": ("of_texts", one(["a", "", "ü"], datatype="BYTES", items=3)),
        "optional": ("with_optional", document([("A", "INT32", [1, 1], [1]), ("B", "INT32", [1, 1], [2])])),
        "optional left out": ("with_optional", one([1])),
        "optional alone": ("with_optional", one([1], name="B")),
        "without optional": ("without_optional", one([1])),
        "without optional, given": (
            "without_optional",
            document([("A", "INT32", [1, 1], [1]), ("MORE", "INT32", [1, 1], [2])]),
        ),
        "partial": ("is_partial", one([1])),
        "partial without output": ("is_partial", one([0])),
        "partial, that wanted": ("is_partial", one([0], **wanting("B"))),
        "partial, other wanted": ("is_partial", one([0], **wanting("C"))),
        "partial fails": ("is_partial", one([-1])),
        "after partial": ("after_partial", one([1])),
        "after partial without output": ("after_partial", one([0])),
        "after partial fails": ("after_partial", one([-1], id="an id")),
        "optional after partial": ("optional_after_partial", one([1])),
        "optional after partial without output": ("optional_after_partial", one([0])),
        "decoupled": ("after_counting", one([1])),
    }
    return {name: infer(server, model, sent) for name, (model, sent) in asked.items()}


def ask_failure(server: ServerProcess) -> Answers:
    """A step of ONNX Runtime fails: the end of its text is the library's own."""
    answer = infer(server, "fails", one([9], datatype="INT64"))
    answer["error"] = answer["error"][:40]
    return {"failed": answer, "not failed": infer(server, "fails", one([1], datatype="INT64"))}


def ask_sequences(server: ServerProcess) -> Answers:
    found: Answers = {}
    for marks in ("", "s", "m", "e", "m"):
        parameters: Any = {"sequence_id": 5}
        if marks == "s":
            parameters["sequence_start"] = True
        if marks == "e":
            parameters["sequence_end"] = True
        answer = http(server, "POST", "/v2/models/with_sequence/infer", one([3], parameters=parameters))
        answer["body"]["outputs"] = sorted(answer["body"].get("outputs", []), key=lambda output: output["name"])
        found[f"{len(found)} {marks}"] = answer
    found["no id"] = infer(server, "with_sequence", one([3]))
    found["two items"] = infer(
        server, "with_sequence", one([3, 4], items=2, parameters={"sequence_id": 6, "sequence_start": True})
    )
    whole = http(server, "POST", "/v2/models/chain/infer", one([1], id="i", parameters={"sequence_id": 2**63 + 1}))
    found["of a chain"] = whole
    return found


def ask_counts(server: ServerProcess) -> Answers:
    return {name: counts(server, name) for name in ("chain", "forked", "unused", "nested", "ints", "add_sub")}


def ask_decoupled(server: ServerProcess) -> Answers:
    """The values of the outputs over a stream, in any order. Which response is the final one depends on the moment."""
    found: Answers = {}
    for model in ("after_counting", "counting_after_counting"):
        for number in (0, 1, 3, -1):
            request = service_pb2.ModelInferRequest(model_name=model, id=f"id {number}")
            request.parameters["triton_enable_empty_final_response"].bool_param = True
            sent = request.inputs.add(name="A", datatype="INT32", shape=[1, 1])
            sent.contents.int_contents.append(number)
            values, errors, finals = [], [], 0
            for each in stream(server, [request]):
                response = each.get("infer_response", {})
                finals += response.get("parameters", {}).get("triton_final_response", {}).get("bool_param", False)
                names = [output["name"] for output in response.get("outputs", ())]
                if names:
                    values.append(sorted(zip(names, response["raw_output_contents"], strict=True)))
                if "error_message" in each:
                    errors.append(each)
            found[f"{model} {number}"] = [sorted(values), errors, finals]
    return found
