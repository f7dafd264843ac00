"""Outputs whose declaration hides that they grow with the batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from core.backends.onnxruntime.backend import OnnxRuntimeBackend
from core.config.autocomplete import auto_complete
from core.config.problem import InvalidModelConfig
from core.config.schema import ModelConfig
from tests.unit import onnx_models
from tests.unit.backend_serving import config_of, tensor_text
from tests.unit.onnx_serving import serving


def declared(shape: Sequence[int | str], datatype: str = "FP32") -> onnx.ModelProto:
    """INPUT0 [batch, 3] -> OUTPUT0, the same, but declared with `shape`."""
    model = onnx_models.identity(datatype, ["batch", 3])
    del model.graph.output[:]
    model.graph.output.append(onnx_models.tensor("OUTPUT0", datatype, shape))
    return model


def total() -> onnx.ModelProto:
    """INPUT0 FP32 [batch, 3] -> OUTPUT0 [1], the sum of all elements, which does not grow."""
    return onnx_models.build(
        [
            helper.make_node("ReduceSum", ["INPUT0"], ["sum"], keepdims=0),
            helper.make_node("Unsqueeze", ["sum", "AXES"], ["OUTPUT0"]),
        ],
        [onnx_models.tensor("INPUT0", "FP32", ["batch", 3])],
        [onnx_models.tensor("OUTPUT0", "FP32", [1])],
        [onnx_models.constant("AXES", [0])],
    )


def failing() -> onnx.ModelProto:
    """INPUT0 BYTES [batch, 3] -> OUTPUT0 FP32 [1, 3]: the trial's empty strings are no numbers."""
    model = onnx_models.string_to_number(["batch", 3])
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    return model


def completed(model: onnx.ModelProto, folder: Path, text: str = "") -> ModelConfig:
    config = config_of(text)
    version = onnx_models.write_version(model, folder, config.name)
    auto_complete(config, OnnxRuntimeBackend().inspect(version, config), 4)
    return config


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BYTES"])
def test_a_model_whose_outputs_grow_is_batched(datatype: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = declared([1, 3], datatype)
    config = completed(model, tmp_path)
    assert (config.max_batch_size, list(config.output[0].dims)) == (4, [3])
    caplog.set_level("INFO")
    with serving(model, str(config), tmp_path) as served:
        array = np.full((2, 3), b"a", object) if datatype == "BYTES" else np.ones((2, 3), served_dtype(datatype))
        assert served.infer({"INPUT0": array})["OUTPUT0"].shape == (2, 3)
    assert [message for message in caplog.messages if "grows" in message] == [
        "output 'OUTPUT0' of model 'model' is declared as [1,3], but a trial run shows that it grows with the batch: "
        "it is served as [-1,3]"
    ]


def served_dtype(datatype: str) -> type[np.float32] | type[np.int64]:
    return np.float32 if datatype == "FP32" else np.int64


@pytest.mark.parametrize("make", [total, failing])
def test_a_model_whose_outputs_do_not_grow_is_not_batched(make: object, tmp_path: Path) -> None:
    assert callable(make)
    config = completed(make(), tmp_path)
    assert config.max_batch_size == 0
    assert config.output[0].dims[0] == 1
    with serving(make(), str(config), tmp_path):
        pass


def test_a_written_output_of_a_model_without_batching_stays(tmp_path: Path) -> None:
    text = tensor_text("output", "OUTPUT0", "FP32", [1, 3])
    config = completed(declared([1, 3]), tmp_path, text)
    assert config.max_batch_size == 0
    with serving(declared([1, 3]), str(config), tmp_path) as served:
        assert served.infer({"INPUT0": np.ones((1, 3), np.float32)})["OUTPUT0"].shape == (1, 3)


def test_the_default_of_no_batching_serves_the_output_with_any_size(tmp_path: Path) -> None:
    config = config_of("")
    version = onnx_models.write_version(declared([1, 3]), tmp_path, config.name)
    auto_complete(config, OnnxRuntimeBackend().inspect(version, config), 0)
    with serving(declared([1, 3]), str(config), tmp_path) as served:
        assert served.infer({"INPUT0": np.ones((2, 3), np.float32)})["OUTPUT0"].shape == (2, 3)


def test_a_configured_batch_size_needs_outputs_that_grow(tmp_path: Path) -> None:
    text = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", "FP32", [3])
    with serving(declared([1, 3]), text + tensor_text("output", "OUTPUT0", "FP32", [3]), tmp_path):
        pass
    wrong = text + tensor_text("output", "OUTPUT0", "FP32", [4])
    with (
        pytest.raises(InvalidModelConfig, match="first dimension must be -1"),
        serving(declared([1, 3]), wrong, tmp_path),
    ):
        pass
    output = tensor_text("output", "OUTPUT0", "FP32", [1], "reshape {}")
    with (
        pytest.raises(InvalidModelConfig, match="first dimension must be -1"),
        serving(total(), text + output, tmp_path),
    ):
        pass
