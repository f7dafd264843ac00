"""ZipMap nodes are cut out of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from core.backends.onnxruntime.backend import OnnxRuntimeBackend
from core.backends.onnxruntime.zip_map import without_zip_maps
from core.config.signature import TensorSignature
from tests.unit import onnx_models
from tests.unit.backend_serving import config_of, tensor_text
from tests.unit.onnx_serving import serving

ROWS = np.array([[1, 2, 3, 4], [-1, 5, -9, 0.5]], np.float32)


def text_of(label: str) -> str:
    return (
        "max_batch_size: 8\n"
        + tensor_text("input", "X", "FP32", [4])
        + tensor_text("output", "output_label", label, [1], "reshape {}")
        + tensor_text("output", "output_probability", "FP32", [3])
    )


@pytest.mark.parametrize(("labels", "datatype"), [((7, 8, 9), "INT64"), (("a", "b", "ü"), "BYTES")])
@pytest.mark.parametrize("imports", [("", "ai.onnx.ml"), ("ai.onnx.ml",)])
def test_a_classifier_answers_with_the_values_of_its_maps(
    labels: Sequence[int] | Sequence[str],
    datatype: str,
    imports: Sequence[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = onnx_models.classifier(labels, imports)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    given, maps = session.run(None, {"X": ROWS})
    caplog.set_level("INFO")
    with serving(model, text_of(datatype), tmp_path) as served:
        answer = served.infer({"X": ROWS})
    assert answer["output_probability"].tolist() == [[row[label] for label in labels] for row in maps]
    found = [label.decode() if isinstance(label, bytes) else label for label in answer["output_label"][:, 0].tolist()]
    assert found == given.tolist()
    assert [message for message in caplog.messages if "ZipMap" in message] == [
        "the ZipMap before output 'output_probability' of model 'model' is left out: the output is a tensor whose "
        f"columns are the labels {', '.join(map(str, labels))}"
    ]


def test_inspection_shows_tensors_and_logs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    version = onnx_models.write_version(onnx_models.classifier(), tmp_path, "model")
    signature = OnnxRuntimeBackend().inspect(version, config_of(""))
    assert signature.outputs == (
        TensorSignature("output_label", "INT64", (-1,)),
        TensorSignature("output_probability", "FP32", (-1, 3)),
    )
    assert caplog.messages == []


def test_weights_in_other_files_are_found(tmp_path: Path) -> None:
    model = onnx_models.classifier()
    model.graph.initializer.append(onnx_models.constant("OFFSET", np.full((1, 4), 2), "FP32"))
    model.graph.node.insert(0, helper.make_node("Add", ["X", "OFFSET"], ["shifted"]))
    model.graph.node[1].input[0] = "shifted"
    version = onnx_models.write_version(model, tmp_path, "model")
    onnx.save(model, version / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    with serving(onnx.load(version / "model.onnx", load_external_data=False), text_of("INT64"), tmp_path) as served:
        assert served.infer({"X": ROWS - 2})["output_probability"].shape == (2, 3)
    assert (version / "weights").stat().st_size > 0


def test_other_graphs_and_other_files_stay() -> None:
    assert without_zip_maps(onnx_models.add_sub().SerializeToString()) is None
    assert without_zip_maps(b"not an ONNX graph") is None
