"""Graphs whose running time depends on the values of their inputs, and others."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.unit import onnx_models
from trident.core.backends.onnxruntime.graph import has_bounded_graph


@pytest.mark.parametrize("model", [onnx_models.add_sub(), onnx_models.identity(), onnx_models.picky()])
def test_a_plain_graph_is_bounded(tmp_path: Path, model: onnx.ModelProto) -> None:
    assert has_bounded_graph(onnx_models.write(model, tmp_path / "model.onnx"))


@pytest.mark.parametrize("model", [onnx_models.waiting(), onnx_models.allocating()])
def test_a_graph_that_repeats_or_allocates_by_a_value_is_unbounded(tmp_path: Path, model: onnx.ModelProto) -> None:
    assert not has_bounded_graph(onnx_models.write(model, tmp_path / "model.onnx"))


def test_a_tensor_with_the_name_of_an_operator_does_not_count(tmp_path: Path) -> None:
    model = onnx_models.identity()
    model.graph.name = model.graph.node[0].name = "Loop"
    assert has_bounded_graph(onnx_models.write(model, tmp_path / "model.onnx"))


@pytest.mark.parametrize("name", ["model.ort", "ort_format.onnx", "empty.onnx", "large.onnx"])
def test_a_file_that_is_not_searched_counts_as_unbounded(tmp_path: Path, name: str) -> None:
    path = onnx_models.write(onnx_models.identity(), tmp_path / name)
    if name == "empty.onnx":
        path.write_bytes(b"")
    elif name == "ort_format.onnx":
        path.write_bytes(b"\0\0\0\0ORTM" + path.read_bytes())
    elif name == "large.onnx":
        with path.open("ab") as file:
            file.truncate(16 * 1024 * 1024 + 1)
    assert not has_bounded_graph(path)
