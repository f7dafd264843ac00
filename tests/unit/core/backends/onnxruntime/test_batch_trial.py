"""Trials of batches: outputs that grow although they are declared otherwise, and rows that mix."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.unit import onnx_models
from tests.unit.backend_serving import config_of, parameter, tensor_text
from tests.unit.onnx_models import Dims
from tests.unit.onnx_serving import running_engine, serving
from trident.core.backends.backend import EndableInstance
from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
from trident.core.backends.onnxruntime.batch_trial import tried_signature
from trident.core.backends.onnxruntime.graph import signature_of
from trident.core.backends.registry import BackendRegistry
from trident.core.config.autocomplete import auto_complete
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.errors import BackendFailed
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.repository.check import check_model
from trident.core.repository.repository import ModelDirectory


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


def completed(model: onnx.ModelProto, folder: Path, text: str = "") -> ModelConfig:
    config = config_of(text)
    version = onnx_models.write_version(model, folder, config.name)
    auto_complete(config, OnnxRuntimeBackend().inspect(version, config), 4)
    return config


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BYTES"])
def test_model_whose_outputs_grow_is_batched(datatype: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_configured_batch_size_needs_outputs_that_grow(tmp_path: Path) -> None:
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


def graph(nodes: Sequence[onnx.NodeProto], shapes: Sequence[Dims], *constants: onnx.TensorProto) -> onnx.ModelProto:
    """X FP32 of the first shape -> Y of the second, INT64 if a third one is there."""
    datatype = "INT64" if len(shapes) == 3 else "FP32"
    return onnx_models.build(
        nodes,
        [onnx_models.tensor("X", "FP32", shapes[0])],
        [onnx_models.tensor("Y", datatype, shapes[1])],
        constants,
    )


def time_major() -> onnx.ModelProto:
    node = helper.make_node("Transpose", ["X"], ["Y"], perm=[2, 0, 1])
    return graph([node], [["batch", 2, "time"], ["time", "batch", 2]])


def found_objects() -> onnx.ModelProto:
    nodes = [helper.make_node("NonZero", ["X"], ["at"]), helper.make_node("Transpose", ["at"], ["Y"], perm=[1, 0])]
    return graph(nodes, [["batch", 3], ["hits", 2], []])


def of_all_rows(operator: str) -> onnx.ModelProto:
    """X -> Y, each row compared with all: less their mean, or as its part of their sum."""
    if operator == "Softmax":
        return graph([helper.make_node("Softmax", ["X"], ["Y"], axis=0)], [["batch", 3], ["batch", 3]])
    nodes = [
        helper.make_node("ReduceMean", ["X"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["X", "mean"], ["Y"]),
    ]
    return graph(nodes, [["batch", 3], ["batch", 3]])


def of_many_rows() -> onnx.ModelProto:
    """X -> Y, less the sum of the rows from the sixth on."""
    nodes = [
        helper.make_node("Slice", ["X", "FIVE", "END", "AXES"], ["late"]),
        helper.make_node("ReduceSum", ["late", "AXES"], ["sum"], keepdims=1),
        helper.make_node("Sub", ["X", "sum"], ["Y"]),
    ]
    named = {"FIVE": [5], "END": [1 << 40], "AXES": [0]}
    constants = [onnx_models.constant(name, value) for name, value in named.items()]
    return graph(nodes, [["batch", 3], ["batch", 3]], *constants)


def quantized_dynamically() -> onnx.ModelProto:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["X"], ["quantized", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["quantized", "W", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["real"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "scale"], ["Y"]),
    ]
    return graph(nodes, [["batch", 2], ["batch", 2]], onnx_models.constant("W", [[1, 0], [0, 1]], "UINT8"))


def quantized_statically() -> onnx.ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["X", "SCALE"], ["quantized"]),
        helper.make_node("DequantizeLinear", ["quantized", "SCALE"], ["Y"]),
    ]
    return graph(nodes, [["batch", 3], ["batch", 3]], onnx_models.constant("SCALE", 0.1, "FP32"))


def of_one_row() -> onnx.ModelProto:
    """X -> Y through a shape that only one row has."""
    nodes = [helper.make_node("Reshape", ["X", "SHAPE"], ["one"]), helper.make_node("Add", ["X", "one"], ["Y"])]
    return graph(nodes, [["batch", 3], ["batch", 3]], onnx_models.constant("SHAPE", [1, 3]))


@pytest.mark.parametrize(
    ("model", "seen"),
    [
        (time_major(), "output 'Y' has shape [5,1,2] for one row"),
        (found_objects(), "output 'Y' has shape [3,2] for one row"),
        (graph([helper.make_node("Flatten", ["X"], ["Y"], axis=0)], [["batch", 3], [1, "all"]]), ""),
        (total(), ""),
        (of_all_rows("Softmax"), "a row of output 'Y' has 1 alone and "),
        (of_all_rows("ReduceMean"), "a row of output 'Y' has 0 alone and"),
        (of_many_rows(), " in a batch of 64"),
        (quantized_dynamically(), "a row of output 'Y' has "),
        (of_one_row(), "it takes one row, and fails on a batch of 2: "),
    ],
    ids=["time", "objects", "all", "total", "softmax", "mean", "many", "dynamic", "one row"],
)
def test_dependent_rows_are_not_batched(
    model: onnx.ModelProto, seen: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = completed(model, tmp_path)
    assert config.max_batch_size == 0
    assert "model 'model' runs one request at a time" in caplog.text
    assert seen in caplog.text


def attention() -> onnx.ModelProto:
    """Identifiers and a mask, as of a text model: a vocabulary of two, attention over the sequence, a label."""
    inputs = [onnx_models.tensor(name, "INT64", ["batch", "length"]) for name in ("ids", "mask")]
    nodes = [
        helper.make_node("Gather", ["TABLE", "ids"], ["x"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "turned"], ["scores"]),
        helper.make_node("Cast", ["mask"], ["real"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Log", ["real"], ["hidden"]),
        helper.make_node("Unsqueeze", ["hidden", "ONE"], ["wide"]),
        helper.make_node("Add", ["scores", "wide"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=2),
        helper.make_node("MatMul", ["weights", "x"], ["sequence"]),
        helper.make_node("ReduceMax", ["sequence"], ["pooled"], axes=[1], keepdims=0),
        helper.make_node("ArgMax", ["pooled"], ["label"], axis=1, keepdims=0),
    ]
    outputs = [
        onnx_models.tensor("sequence", "FP32", ["batch", "length", 4]),
        onnx_models.tensor("label", "INT64", ["batch"]),
    ]
    table = np.arange(8).reshape(2, 4) % 5 / 4
    constants = [onnx_models.constant("TABLE", table, "FP32"), onnx_models.constant("ONE", [1])]
    return onnx_models.build(nodes, inputs, outputs, constants)


def random() -> onnx.ModelProto:
    """X -> Y, with noise: no row is answered the same way twice."""
    nodes = [helper.make_node("RandomNormalLike", ["X"], ["noise"]), helper.make_node("Add", ["X", "noise"], ["Y"])]
    return graph(nodes, [["batch", 3], ["batch", 3]])


def unknown_ids() -> onnx.ModelProto:
    """X INT64 [batch, 1] -> Y: a table that none of the made-up numbers is in."""
    table = onnx_models.constant("TABLE", [[1.0]], "FP32")
    nodes = [helper.make_node("Add", ["X", "FAR"], ["far"]), helper.make_node("Gather", ["TABLE", "far"], ["Y"])]
    inputs, outputs = onnx_models.tensor("X", "INT64", ["batch"]), onnx_models.tensor("Y", "FP32", ["batch", 1])
    return onnx_models.build(nodes, [inputs], [outputs], [table, onnx_models.constant("FAR", -200)])


@pytest.mark.parametrize(
    "model",
    [
        onnx_models.add_sub("FP32", "n"),
        onnx_models.add_sub("UINT8"),
        onnx_models.identity("BOOL", ["batch"]),
        onnx_models.strings(),
        onnx_models.string_to_number(),
        onnx_models.two_outputs(),
        attention(),
        random(),
        quantized_statically(),
        unknown_ids(),
        graph([helper.make_node("Log", ["X"], ["Y"])], [["batch", 3], ["batch", 3]]),
        onnx_models.identity("FP32", ["batch", 100_000, 100_000]),  # as declared: nothing of this size is made
    ],
    ids=["sum", "bytes", "bool", "text", "numbers", "two", "attention", "random", "static", "unknown", "log", "huge"],
)
def test_independent_rows_are_batched(model: onnx.ModelProto, tmp_path: Path) -> None:
    assert completed(model, tmp_path).max_batch_size == 4


def endless() -> onnx.ModelProto:
    """X -> Y by a loop of 2^40 steps."""
    step = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["before"], ["after"])],
        "step",
        [
            helper.make_tensor_value_info("number", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            onnx_models.tensor("before", "FP32", ["batch", 3]),
        ],
        [
            helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []),
            onnx_models.tensor("after", "FP32", ["batch", 3]),
        ],
    )
    node = helper.make_node("Loop", ["STEPS", "", "X"], ["Y"], body=step)
    return graph([node], [["batch", 3], ["batch", 3]], onnx_models.constant("STEPS", 1 << 40))


def test_long_trials_are_stopped(caplog: pytest.LogCaptureFixture) -> None:
    session = onnxruntime.InferenceSession(endless().SerializeToString(), providers=["CPUExecutionProvider"])
    signature = signature_of(session, "model")
    caplog.set_level("INFO")
    assert tried_signature(session, signature, "model", seconds=0.1) is signature
    assert "model 'model' could not be tried in batches, because it took too long" in caplog.text


def test_endless_execution_is_ended(tmp_path: Path) -> None:
    text = tensor_text("input", "X", "FP32", [-1, 3]) + tensor_text("output", "Y", "FP32", [-1, 3])
    with serving(endless(), text, tmp_path) as served:
        assert isinstance(served.instance, EndableInstance)
        end = threading.Timer(0.05, served.instance.abort, ("the server is stopping",), {"for_good": True})
        end.start()
        with pytest.raises(
            BackendFailed, match="on model instance 'model_0' was ended, because the server is stopping"
        ):
            served.infer({"X": np.zeros((1, 3), np.float32)})
        end.join()


@pytest.mark.parametrize(("max_batch_size", "warns"), [(8, True), (1, True), (0, False)])
def test_configured_batching_of_dependent_rows_logs_a_warning(
    max_batch_size: int, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dims = ([2, -1], [-1, 2]) if max_batch_size else ([-1, 2, -1], [-1, -1, 2])
    text = f"max_batch_size: {max_batch_size}\n"
    text += tensor_text("input", "X", "FP32", dims[0]) + tensor_text("output", "Y", "FP32", dims[1])
    with serving(time_major(), text, tmp_path):
        found = [message for message in caplog.messages if "output 'Y' has shape [5,1,2] for one row" in message]
    assert len(found) == warns
    assert all("set max_batch_size to 0" in message for message in found)
    onnx_models.write_version(time_major(), tmp_path / "all", "model", text)
    directory = ModelDirectory("model", tmp_path / "all" / "model")
    check = check_model(directory, BackendRegistry({}))
    assert check.problems == []
    assert [warning.path for warning in check.warnings] == ["max_batch_size"] * warns


OF_ROWS = tensor_text("input", "X", "FP32", [3]) + tensor_text("output", "Y", "FP32", [3])
DELAYED = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 50000 }\n"
MIXED = {
    "complete": OF_ROWS + DELAYED,
    "completed": DELAYED,
    "target": OF_ROWS + "dynamic_batching { }\n" + parameter("TARGET_P99_MS", 100),
    "buckets": OF_ROWS + DELAYED + parameter("BATCH_BUCKETS", "4,8"),
    "oldest": OF_ROWS
    + "sequence_batching { oldest { max_candidate_sequences: 8 max_queue_delay_microseconds: 50000 } }",
    "direct": OF_ROWS + "sequence_batching { direct { } }",
    "insists": OF_ROWS + DELAYED + parameter("BATCH_DESPITE_TRIAL", "true"),
}


def test_requests_are_not_combined_after_a_trial_with_dependent_rows(tmp_path: Path) -> None:
    for name, text in MIXED.items():
        onnx_models.write_version(of_all_rows("ReduceMean"), tmp_path, name, f"max_batch_size: 8\n{text}")
    answers: dict[str, list[float]] = {name: [] for name in MIXED}
    done = threading.Semaphore(0)

    def note(response: InferenceResponse) -> None:
        answers[response.model_name].append(float(response.outputs[0].array[0, 0]) if response.outputs else math.nan)
        done.release()

    with running_engine(tmp_path) as engine:
        for name, number in product(MIXED, range(1, 5)):
            tensor = InputTensor("X", "FP32", (1, 3), np.full((1, 3), number, np.float32))
            request = InferenceRequest(name, [tensor])
            if "sequence_batching" in MIXED[name]:
                request.correlation_id, request.sequence_start, request.sequence_end = number, True, True
            engine.model(name).submit(PendingRequest(request, note))
        assert all(done.acquire(timeout=60) for _ in range(4 * len(MIXED)))
        index = {entry.name: entry.reason for entry in engine.repository_index(ready_only=True)}
    assert answers.pop("insists") == [-1.5, -0.5, 0.5, 1.5], "one batch, from which the mean is subtracted"
    assert answers == dict.fromkeys(answers, [0.0] * 4)
    assert index.pop("insists") == ""
    text = "each request is executed alone, because a trial has shown that the graph does not keep the requests of a "
    assert all(
        reason.startswith(f"{text}batch apart: a row of output 'Y' has 0 alone and") for reason in index.values()
    )
