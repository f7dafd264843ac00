"""What models import from a stub process, and what its modules need: Python 3.9 and numpy."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from tests.project import ROOT

STUB = ROOT / "core" / "backends" / "python" / "stub"
SHARED = [ROOT / "core" / "interprocess" / name for name in ("frames.py", "shared_memory.py")]
FILES = [*sorted(STUB.rglob("*.py")), *SHARED]
# Modules that came to the standard library after 3.9, and names in older ones that did.
TOO_NEW = {"tomllib", "wsgiref.types", "typing.Self", "typing.TypeAlias", "typing.ParamSpec", "enum.StrEnum"}
TOO_NEW |= {"datetime.UTC", "itertools.pairwise", "itertools.batched", "asyncio.TaskGroup", "asyncio.timeout"}
NOT_IN_THE_STUB = {"TYPE_CHECKING", "TYPE_CHECKING or __package__ != 'trident_stub'"}
OWN = {"trident_stub", "c_python_backend_utils", "numpy"}


def imported(tree: ast.AST) -> set[str]:
    """What the module imports while it runs, as dotted names; relative ones are the package's own."""
    elsewhere = {
        id(line)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in NOT_IN_THE_STUB
        for line in node.body
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in elsewhere:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_module_needs_python_3_9_and_numpy_only(path: Path) -> None:
    source = path.read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    names = imported(tree)
    assert {name.split(".")[0] for name in names} - OWN <= set(sys.stdlib_module_names)
    assert not names & TOO_NEW
    # Annotations of a newer syntax must not be evaluated.
    annotated = any(isinstance(node, (ast.FunctionDef, ast.AnnAssign)) for node in ast.walk(tree))
    assert not annotated or "from __future__ import annotations" in source


CONFIG = json.dumps(
    {"input": [{"name": "A", "dims": [1]}], "output": [{"name": "B"}], "model_transaction_policy": {"decoupled": True}}
)


def test_tensors_by_name() -> None:
    tensors = [pb_utils.Tensor(name, np.zeros(1)) for name in "AB"]
    request = pb_utils.InferenceRequest(inputs=tensors, requested_output_names=[], model_name="m")
    assert pb_utils.get_input_tensor_by_name(request, "B") is tensors[1]
    assert pb_utils.get_input_tensor_by_name(request, "C") is None
    response = pb_utils.InferenceResponse(tensors)
    assert pb_utils.get_output_tensor_by_name(response, "A") is tensors[0]
    assert pb_utils.get_output_tensor_by_name(response, "C") is None


def test_configurations_by_name() -> None:
    config = json.loads(CONFIG)
    assert pb_utils.get_input_config_by_name(config, "A") == {"name": "A", "dims": [1]}
    assert pb_utils.get_input_config_by_name(config, "B") is None
    assert pb_utils.get_output_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.get_output_config_by_name({}, "B") is None
    assert pb_utils.using_decoupled_model_transaction_policy(config) is True
    assert pb_utils.using_decoupled_model_transaction_policy({}) is False


def test_datatypes() -> None:
    assert pb_utils.triton_string_to_numpy("TYPE_FP32") is np.float32
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    for unknown in ("TYPE_BF16", "FP32"):
        with pytest.raises(KeyError):
            pb_utils.triton_string_to_numpy(unknown)
    for number in range(1, 14):
        assert pb_utils.numpy_to_triton_type(pb_utils.triton_to_numpy_type(number)) == number
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert pb_utils.triton_to_numpy_type(14) is None
    assert pb_utils.numpy_to_triton_type(np.complex64) is None
