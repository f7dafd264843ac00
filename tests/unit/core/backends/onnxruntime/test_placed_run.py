"""Outputs that are written into memory of the caller, with a real session."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.unit.backend_serving import config_of, spec_of, tensor_text
from trident.core.backends.onnxruntime.runs import PlacedRun
from trident.core.inference.tensors import Array

LARGE = np.arange(1 << 18, dtype=np.float32).reshape(2, -1)


def run_of(model_dims: tuple[Any, ...], operator: str = "Identity") -> PlacedRun:
    """The run of a model that has two dimensions, B and N, and says `model_dims` of its output."""
    graph = helper.make_graph(
        [helper.make_node(operator, ["IN"], ["OUT"])],
        "graph",
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ("B", "N"))],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, model_dims)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    text = "max_batch_size: 8\n" + tensor_text("input", "IN", "FP32", [-1])
    spec = spec_of(config_of(text + tensor_text("output", "OUT", "FP32", [-1])))
    return PlacedRun(session, onnxruntime.OrtValue, session._sess.run, spec)


class Memory:
    """Memory of `capacity` bytes, of which each piece can be had once."""

    def __init__(self, capacity: int = 1 << 22) -> None:
        self.left = capacity
        self.given: list[Array] = []

    def __call__(self, size: int) -> Array | None:
        if size > self.left:
            return None
        self.left -= size
        self.given.append(np.zeros(size, np.uint8))
        return self.given[-1]


def test_a_large_output_is_written_into_the_memory() -> None:
    run, memory = run_of(("B", "N")), Memory()
    assert run.knows_shapes
    for number in range(2):
        (array,) = run(["OUT"], {"IN": LARGE + number}, None, memory)
        assert array.tolist() == (LARGE + number).tolist()
        assert np.shares_memory(array, memory.given[number])
    # The second run wrote nothing into the memory of the first.
    assert memory.given[0].view(np.float32).tolist() == LARGE.reshape(-1).tolist()


@pytest.mark.parametrize(("array", "capacity"), [(LARGE[:, :8], 1 << 22), (LARGE, 1000)], ids=["small", "no room"])
def test_other_outputs_are_those_of_a_plain_run(array: Array, capacity: int) -> None:
    memory = Memory(capacity)
    (found,) = run_of(("B", "N"))(["OUT"], {"IN": np.ascontiguousarray(array)}, None, memory)
    assert found.tolist() == array.tolist()
    assert memory.given == []


def test_no_tensor_is_kept() -> None:
    run, given, memory = run_of(("B", "N")), LARGE.copy(), Memory()
    run(["OUT"], {"IN": given}, None, memory)
    kept = [weakref.ref(given), weakref.ref(memory.given[0])]
    del given
    memory.given.clear()
    assert [array() for array in kept] == [None, None]


def test_a_graph_that_does_not_say_the_shape_has_no_output_to_place() -> None:
    assert not run_of(("B", "M")).knows_shapes


def test_a_graph_that_says_a_wrong_shape_is_believed_once() -> None:
    run, memory = run_of(("N", "B")), Memory()
    for _ in range(2):
        (array,) = run(["OUT"], {"IN": LARGE}, None, memory)
        assert array.tolist() == LARGE.tolist()
    assert len(memory.given) == 1
