"""Graphs of text models that are not as the usual export makes them: inputs, fixed dimensions, datatypes, heads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.hub_folders import SIZE, TABLE, mean_of, vectors_of, write_folder
from tests.unit.backend_serving import Serving, config_of, parameter, serving_version, strings
from trident.core.backends.text.backend import TextBackend
from trident.core.errors import ModelLoadFailed
from trident.core.inference.tensors import Array

TEXTS = ("good cat", "bad dog in paris is this", "who", "cat dog cat dog cat dog cat dog", "anna lives")


def write_graph(
    folder: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, Array],
    output: tuple[str, int, list[Any]],
    *,
    inputs: tuple[str, ...] = ("input_ids", "attention_mask"),
    shape: tuple[Any, Any] = ("batch", "sequence"),
) -> None:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, list(shape)) for name in inputs],
        [helper.make_tensor_value_info(*output)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(made, folder / "onnx" / "model.onnx")


def hidden(folder: Path, *, kind: int = TensorProto.FLOAT, scale: float = 1, **more: Any) -> None:
    """Write a graph that gives each token its vector, times `scale`, with the datatype `kind`."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"]),
        helper.make_node("Cast", ["found"], ["last_hidden_state"], to=kind),
    ]
    dims = [*more.get("shape", ("batch", "sequence")), SIZE]
    write_graph(folder, nodes, {"table": TABLE * np.float32(scale)}, ("last_hidden_state", kind, dims), **more)


def mixing(folder: Path) -> None:
    """Write a graph without a mask, in which each token's vector is the mean of all."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"]),
        helper.make_node("ReduceMean", ["found", "axes"], ["mean"], keepdims=1),
        helper.make_node("Shape", ["found"], ["dims"]),
        helper.make_node("Expand", ["mean", "dims"], ["last_hidden_state"]),
    ]
    weights = {"table": TABLE, "axes": np.array([1])}
    output = ("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", SIZE])
    write_graph(folder, nodes, weights, output, inputs=("input_ids",))


@contextmanager
def serving(folder: Path, text: str = "") -> Iterator[Serving]:
    backend = TextBackend({})
    config = config_of(text, backend="text")
    backend.complete(folder, config)
    with serving_version(backend, folder, config) as found:
        yield found


def embedded(folder: Path, text: str = "") -> Array:
    with serving(folder, text) as model:
        column = strings(*(each.encode() for each in TEXTS), shape=(len(TEXTS), 1))
        return model.infer({"text": column})["embedding"]


def test_texts_are_not_padded_for_a_graph_without_a_mask(tmp_path: Path) -> None:
    mixing(write_folder(tmp_path))
    np.testing.assert_allclose(embedded(tmp_path), [mean_of(text) for text in TEXTS], rtol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last-token"])
def test_vectors_of_half_precision_are_normalized_in_single_precision(tmp_path: Path, pooling: str) -> None:
    hidden(write_folder(tmp_path), kind=TensorProto.FLOAT16, scale=300)
    vectors = embedded(tmp_path, parameter("pooling", pooling) + parameter("normalize", "true"))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.ones(len(TEXTS)), rtol=1e-3)


@pytest.mark.parametrize("shape", [("batch", 12), (2, "sequence"), (1, 12), (3, 6)])
def test_fixed_dimensions_are_filled_up(tmp_path: Path, shape: tuple[Any, Any]) -> None:
    hidden(write_folder(tmp_path), shape=shape)
    expected = [mean_of(text) for text in TEXTS]
    if shape[1] == 6:  # longer texts are cut
        found = [vectors_of(text) for text in TEXTS]
        expected = [np.concatenate([each[: min(5, len(each) - 1)], each[-1:]]).mean(axis=0) for each in found]
    np.testing.assert_allclose(embedded(tmp_path), expected, rtol=1e-5)


def test_unsuitable_graph_fails_the_load(tmp_path: Path) -> None:
    hidden(write_folder(tmp_path), kind=TensorProto.BFLOAT16)
    with pytest.raises(ModelLoadFailed, match="cannot answer"), serving(tmp_path):
        pass


def head(folder: Path, name: str, width: int) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"]),
        helper.make_node("ReduceMean", ["found", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "head"], [name]),
    ]
    weights = {"table": TABLE, "axes": np.array([1]), "head": np.ones((SIZE, width), np.float32)}
    write_graph(folder, nodes, weights, (name, TensorProto.FLOAT, ["batch", width]))


@pytest.mark.parametrize("settings", [{"num_labels": 3}, {}, {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}])
def test_labels_without_names_are_numbered(tmp_path: Path, settings: dict[str, Any]) -> None:
    head(write_folder(tmp_path, "BertForSequenceClassification", settings=settings), "logits", 3)
    with serving(tmp_path) as model:
        assert model.model.labels["scores"] == ("LABEL_0", "LABEL_1", "LABEL_2")
        assert model.infer({"text": strings(b"cat", shape=(1, 1))})["scores"].shape == (1, 3)
        assert model.spec.outputs["scores"].dims == (3,)


def test_modules_inside_the_graph_are_not_applied_twice(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, pooling={"pooling_mode_mean_tokens": True})
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"path": path, "type": f"sentence_transformers.models.{kind}"}
                for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))
            ]
        )
    )
    head(folder, "sentence_embedding", 3)
    with serving(folder) as model:
        vectors = model.infer({"text": strings(b"cat", shape=(1, 1))})["embedding"]
        assert model.spec.outputs["embedding"].dims == (3,)
    np.testing.assert_allclose(vectors, [[mean_of("cat").sum()] * 3], rtol=1e-5)


@pytest.mark.parametrize(
    ("file", "content", "removed", "cure"),
    [
        ("vocab.txt", "[PAD]\n", "tokenizer.json", r"vocab\.txt alone is not read"),
        ("onnx/model.onnx", "version https://git-lfs.github.com/spec/v1\n", "", "git lfs pull"),
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1\n", "", "git lfs pull"),
        ("model.safetensors", "", "onnx/model.onnx", "optimum-cli export onnx"),
    ],
)
def test_file_that_is_missing_names_the_step_that_makes_it(
    tmp_path: Path, file: str, content: str, removed: str, cure: str
) -> None:
    write_folder(tmp_path)
    (tmp_path / file).write_text(content)
    if removed:
        (tmp_path / removed).unlink()
    with pytest.raises(ModelLoadFailed) as caught, serving(tmp_path):
        pass
    assert caught.value.hint
    assert re.search(cure, caught.value.hint)
