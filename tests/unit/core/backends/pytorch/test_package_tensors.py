"""What packages say of their tensors without PyTorch: a program that torch.export has saved, and generated code."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.backend_serving import config_of, tensor_text
from trident.core.backends.pytorch.packages import tensors_of

LEAF = {"type": None, "context": None, "children_spec": []}
IN_SPEC = {
    "type": "builtins.tuple",
    "context": "null",
    "children_spec": [
        {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF]},
        {"type": "builtins.dict", "context": '["y"]', "children_spec": [LEAF]},
    ],
}
OUT_SPEC = {"type": "builtins.dict", "context": '["a"]', "children_spec": [LEAF]}
# As AOTInductor of PyTorch 2.13 writes it, shortened.
CODE = """
    in_spec_ = R"(%s)";
    out_spec_ = R"(%s)";
AOTI_NOINLINE static void check_input_0(
    AtenTensorHandle* input_handles
) {
    int32_t arg2_1_expected_dtype = aoti_torch_dtype_float32();
    if (arg2_1_size[0] < 2) {
    }
    if (arg2_1_size[0] > 16) {
    }
    if (4 != arg2_1_size[1]) {
    }
    if (4 != arg2_1_stride[0]) {
    }
}

AOTI_NOINLINE static void check_input_1(
    AtenTensorHandle* input_handles
) {
    int32_t arg3_1_expected_dtype = aoti_torch_dtype_int64();
    if (arg3_1_size[0] > 16) {
    }
    if (1 != arg3_1_stride[1]) {
    }
}
"""
X, Y = tensor_text("input", "ARGS[0]", "FP32", [4]), tensor_text("input", "KWARGS[y]", "INT64", [3])
ANSWER = tensor_text("output", "RESULT[a]", "FP32", [2])


def program() -> dict[str, Any]:
    rows = {"as_expr": {"expr_str": "Symbol('s17', positive=True, integer=True)", "hint": {"as_int": 2}}}
    other = {"as_expr": {"expr_str": "Symbol('s99', integer=True)"}}
    values = {
        "w": {"dtype": 7, "sizes": [{"as_int": 9}]},
        "x": {"dtype": 7, "sizes": [rows, {"as_int": 4}]},
        "y": {"dtype": 5, "sizes": [rows, other]},
        "add": {"dtype": 7, "sizes": [rows, {"as_int": 2}]},
    }
    inputs = [{"user_input": {"arg": {"as_tensor": {"name": name}}}} for name in ("x", "y")]
    outputs = [{"user_output": {"arg": {"as_tensor": {"name": "add"}}}}]
    call = {"in_spec": json.dumps([1, IN_SPEC]), "out_spec": json.dumps([1, OUT_SPEC]), "forward_arg_names": ["x", "y"]}
    return {
        "graph_module": {
            "graph": {"tensor_values": values},
            "signature": {
                "input_specs": [{"parameter": {"arg": {"name": "w"}}}, *inputs],
                "output_specs": outputs,
            },
            "module_call_graph": [{"signature": call}],
        },
        "range_constraints": {"s17": {"min_val": 1, "max_val": 16}, "s99": {"min_val": 0, "max_val": None}},
    }


def package(path: Path, name: str, text: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, text)
    return path


def exported(path: Path) -> Path:
    return package(path, "m/models/model.json", json.dumps(program()))


def compiled(path: Path) -> Path:
    code = CODE % (json.dumps([1, IN_SPEC]), json.dumps([1, OUT_SPEC]))
    return package(path, "m/data/aotinductor/model/c.wrapper.cpp", code)


def fields(path: Path, *inputs: str, output: str = ANSWER, batch: int = 16) -> list[str]:
    """The fields with problems; the inputs and the output are right unless given."""
    tensors = tensors_of(path)
    assert tensors is not None
    text = f"max_batch_size: {batch}\n" + "".join(inputs or (X, Y)) + output
    return [problem.path for problem in tensors.problems(config_of(text, backend="pytorch"))]


@pytest.mark.parametrize("write", [exported, compiled])
def test_what_does_not_fit_is_found_before_it_runs(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path / "model.pt2")
    assert fields(path) == []
    assert fields(path, X, tensor_text("input", "KWARGS[y]", "INT64", [-1])) == []
    assert fields(path, tensor_text("input", "b__0", "FP32", [4]), Y) == []
    assert fields(path, X) == ["input"]
    assert fields(path, tensor_text("input", "ARGS[0]", "FP64", [4]), Y) == ["input[0].data_type"]
    # AOTInductor would read beyond rows that are shorter.
    assert fields(path, tensor_text("input", "ARGS[0]", "FP32", [3]), Y) == ["input[0].dims"]
    assert fields(path, tensor_text("input", "ARGS[0]", "FP32", [-1]), Y) == ["input[0].dims"]
    assert fields(path, tensor_text("input", "ARGS[0]", "FP32", [4, 1]), Y) == ["input[0].dims"]
    assert fields(path, tensor_text("input", "z", "FP32", [4]), Y) == ["input[0].name"]
    assert fields(path, batch=17) == ["max_batch_size"] * 2
    assert fields(path, output=tensor_text("output", "RESULT[b]", "FP32", [2])) == ["output[0].name"]


def sequences(control: str = "fp32", state: str = "INT64", dims: int = 3) -> str:
    """X as the control START, and Y as a state."""
    kind = f"control {{ kind: CONTROL_SEQUENCE_START {control}_false_true: [ 0, 1 ] }}"
    return (
        f'sequence_batching {{ control_input {{ name: "ARGS[0]" {kind} }} state {{ input_name: "KWARGS[y]" '
        f'output_name: "RESULT[a]" data_type: TYPE_{state} dims: {dims} }} }}\n'
    )


def test_controls_and_states_are_compared_as_well(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    document = program()
    document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][1] = {"as_int": 1}
    package(path, "m/models/model.json", json.dumps(document))
    state, control = "sequence_batching.state", "sequence_batching.control_input"
    output = [f"{state}.data_type", f"{state}.dims"]
    assert fields(path, sequences(), output="") == output
    assert fields(path, sequences("int32"), output="") == [f"{control}.data_type", *output]
    assert fields(path, sequences(state="STRING"), output="") == [f"{state}.data_type", *output]
    assert fields(path, sequences(state="FP32", dims=2), output="") == [f"{state}.data_type"]


def test_the_outputs_of_a_program_are_known_as_well(tmp_path: Path) -> None:
    path = exported(tmp_path / "model.pt2")
    assert fields(path, output=tensor_text("output", "RESULT[a]", "FP16", [2])) == ["output[0].data_type"]
    assert fields(path, output=tensor_text("output", "RESULT[a]", "FP32", [5])) == ["output[0].dims"]


def test_a_fixed_batch_is_found(tmp_path: Path) -> None:
    document = program()
    document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = {"as_int": 16}
    path = package(tmp_path / "model.pt2", "m/models/model.json", json.dumps(document))
    assert fields(path) == ["max_batch_size"]


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"graph_module": 1}', "[" * 100_000])
def test_what_is_not_as_known_is_not_checked(tmp_path: Path, text: str) -> None:
    assert tensors_of(package(tmp_path / "model.pt2", "m/models/model.json", text)) is None
