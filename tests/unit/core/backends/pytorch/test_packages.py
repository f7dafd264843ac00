"""Packages of torch.export and AOTInductor: files, and their tensors as read without PyTorch."""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import needed
from tests.project import ROOT
from tests.unit.backend_serving import config_of, tensor_text
from trident.core.backends.pytorch.backend import check_package, tensors_of
from trident.core.backends.stub_models.torch_places import named_leaves, places
from trident.core.errors import ModelLoadFailed

if TYPE_CHECKING:
    import torch
else:
    torch = needed.package("torch")

# --- files


def package(path: Path, metadata: dict[str, str] | None = None, *, complete: bool = True) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        if complete:
            archive.writestr("model/archive_format", "pt2")
        if metadata is not None:
            archive.writestr("model/data/aotinductor/model/kernel_metadata.json", json.dumps(metadata))
    return path


@pytest.mark.parametrize("metadata", [None, {}, {"AOTI_MACHINE": platform.machine(), "AOTI_CPU_ISA": ""}])
def test_packages_for_this_machine_pass(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    check_package(package(tmp_path / "model.pt2", metadata), "model")


@pytest.mark.parametrize(
    ("metadata", "missing"),
    [({"AOTI_MACHINE": "vax"}, "vax"), ({"AOTI_CPU_ISA": "AVX9000 ALU"}, "avx9000, alu")],
)
def test_package_for_another_processor_is_refused(tmp_path: Path, metadata: dict[str, str], missing: str) -> None:
    path = package(tmp_path / "model.pt2", metadata)
    with pytest.raises(ModelLoadFailed, match=f"was compiled for a processor with {missing}, which this one has not"):
        check_package(path, "model")


@pytest.mark.parametrize("content", [b"\x80\x02}q\x00.", b"PK\x03\x04"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(ModelLoadFailed) as raised:
        check_package(path, "model")
    assert "'model.pt2' is not a package of torch.export or AOTInductor: " in raised.value.message
    assert raised.value.hint


def test_other_archives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed) as raised:
        check_package(package(tmp_path / "model.pt2", complete=False), "model")
    assert "a pickle of torch.save is never loaded" in (raised.value.hint or "")


# --- names of tensors


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["ARGS[1]", "ARGS[0]"], {"ARGS[1]": 1, "ARGS[0]": 0}),
        (["INPUT__1", "INPUT__0"], {"INPUT__1": 1, "INPUT__0": 0}),
        (["b", "a"], {"b": 1, "a": 0}),
        (["ARGS[0]", "INPUT__1"], {"ARGS[0]": 0, "INPUT__1": 1}),
    ],
)
def test_input_names_are_mapped_to_argument_positions(names: list[str], found: dict[str, int]) -> None:
    assert places(names, {"ARGS[0]": 0, "ARGS[1]": 1}, ("a", "b")) == found


def test_nested_tensors_are_named_by_their_path() -> None:
    tree = {"sum": 0, "more": [1, {"key": 2}]}
    assert named_leaves(tree, "RESULT") == {"RESULT[sum]": 0, "RESULT[more][0]": 1, "RESULT[more][1][key]": 2}


# --- tensors


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


def archive(path: Path, name: str, text: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, text)
    return path


def exported(path: Path) -> Path:
    return archive(path, "m/models/model.json", json.dumps(program()))


def compiled(path: Path) -> Path:
    code = CODE % (json.dumps([1, IN_SPEC]), json.dumps([1, OUT_SPEC]))
    return archive(path, "m/data/aotinductor/model/c.wrapper.cpp", code)


def fields(path: Path, *inputs: str, output: str = ANSWER, batch: int = 16) -> list[str]:
    """The fields with problems; the inputs and the output are right unless given."""
    tensors = tensors_of(path)
    assert tensors is not None
    text = f"max_batch_size: {batch}\n" + "".join(inputs or (X, Y)) + output
    return [problem.path for problem in tensors.problems(config_of(text, backend="pytorch"))]


@pytest.mark.parametrize("write", [exported, compiled])
def test_mismatches_are_found_before_the_package_runs(tmp_path: Path, write: Any) -> None:
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
    archive(path, "m/models/model.json", json.dumps(document))
    state, control = "sequence_batching.state", "sequence_batching.control_input"
    output = [f"{state}.data_type", f"{state}.dims"]
    assert fields(path, sequences(), output="") == output
    assert fields(path, sequences("int32"), output="") == [f"{control}.data_type", *output]
    assert fields(path, sequences(state="STRING"), output="") == [f"{state}.data_type", *output]
    assert fields(path, sequences(state="FP32", dims=2), output="") == [f"{state}.data_type"]


def test_fixed_batch_is_found(tmp_path: Path) -> None:
    document = program()
    document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = {"as_int": 16}
    path = archive(tmp_path / "model.pt2", "m/models/model.json", json.dumps(document))
    assert fields(path) == ["max_batch_size"]


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"graph_module": 1}', "[" * 100_000])
def test_packages_of_unknown_structure_are_not_checked(tmp_path: Path, text: str) -> None:
    assert tensors_of(archive(tmp_path / "model.pt2", "m/models/model.json", text)) is None


# --- the process of a package


BACKENDS = ROOT / "core" / "backends"
LOAD = """
import sys
import torch_package
for package in sys.argv[1:]:
    print(torch_package._loaded(package, {}, "cpu")[3])
"""


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class RunsCode:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def loaded(*packages: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(BACKENDS / name) for name in ("python/stub", "stub_models"))
    # What would allow pickles must not reach the process.
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    command = [sys.executable, "-c", LOAD, *map(str, packages)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_pickle_in_a_package_is_never_run(tmp_path: Path) -> None:
    package, changed, trace = tmp_path / "model.pt2", tmp_path / "changed.pt2", tmp_path / "trace"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(Double(), (torch.zeros(2),)), package)
    pickled = io.BytesIO()
    torch.save(([RunsCode(trace)], {}), pickled)
    replaced = 0
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            is_sample = name.endswith("sample_inputs/model.pt")
            new.writestr(name, pickled.getvalue() if is_sample else old.read(name))
            replaced += is_sample
    assert replaced == 1
    refused = loaded(package, changed)
    assert refused.stdout == "('x',)\n"
    assert refused.returncode != 0
    assert "Weights only load failed" in refused.stderr
    assert not trace.exists()
