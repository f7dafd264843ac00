"""OpenVINO models made here, served, and compared with numpy; bounds of their running time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13

from tests.unit.backend_serving import Serving, config_of, parameter, serving_version, tensor_text
from trident.core.backends.openvino.backend import OpenVinoBackend
from trident.core.backends.openvino.compiler import has_bounded_graph
from trident.core.config.autocomplete import auto_complete
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.errors import ModelLoadFailed, RepositoryUnavailable, ServerError
from trident.core.inference.tensors import Array


def add_sub(shape: Sequence[int] = (-1, 16), layout: str = "") -> Any:
    inputs = [opset13.parameter(list(shape), openvino.Type.f32, name=f"INPUT{n}") for n in range(2)]
    results = []
    for name, operator in (("OUTPUT0", opset13.add), ("OUTPUT1", opset13.subtract)):
        made = operator(*inputs)
        made.output(0).tensor.names = {name}
        results.append(opset13.result(made))
    model = openvino.Model(results, inputs, "add_sub")
    if layout:
        for port in [*model.inputs, *model.outputs]:
            port.get_node().layout = openvino.Layout(layout)
    return model


def one_output(given: Any, made: Any) -> Any:
    """The graph from `given` to OUTPUT0."""
    made.output(0).tensor.names = {"OUTPUT0"}
    return openvino.Model([opset13.result(made)], [given], "model")


def fixed_rows(rows: int) -> Any:
    """A graph whose operators fix the first dimension."""
    given = opset13.parameter([rows, 4], openvino.Type.f32, name="INPUT0")
    return one_output(given, opset13.reshape(given, opset13.constant(np.array([rows, 4], np.int64)), False))


def product(weights: Array) -> Any:
    given = opset13.parameter([-1, len(weights)], openvino.Type.f32, name="INPUT0")
    return one_output(given, opset13.matmul(given, opset13.constant(weights), False, False))


def ov_config(
    inputs: Sequence[str] = ("INPUT0", "INPUT1"),
    outputs: Sequence[str] = ("OUTPUT0", "OUTPUT1"),
    datatype: str = "FP32",
    dims: Sequence[int] = (16,),
    max_batch_size: int = 8,
    more: str = "",
) -> ModelConfig:
    text = f"max_batch_size: {max_batch_size}\n"
    text += "".join(tensor_text("input", name, datatype, dims) for name in inputs)
    text += "".join(tensor_text("output", name, datatype, dims) for name in outputs)
    return config_of(text + more, backend="openvino")


def save(model: Any, version: Path) -> None:
    openvino.save_model(model, str(version / "model.xml"), compress_to_fp16=False)


def add_sub_answers(served: Serving, sizes: Sequence[int] = (1, 3, 2), dtype: str = "float32") -> None:
    """Requests of these sizes, in one batch, get their sums and differences."""
    pairs = [(np.full((size, 16), 5 + n, dtype), np.full((size, 16), n + 1, dtype)) for n, size in enumerate(sizes)]
    answers = served.execute([served.request({"INPUT0": a, "INPUT1": b}) for a, b in pairs])
    for (a, b), answer in zip(pairs, answers, strict=True):
        np.testing.assert_array_equal(answer["OUTPUT0"], a + b)
        np.testing.assert_array_equal(answer["OUTPUT1"], a - b)


@pytest.mark.parametrize("shape", [(-1, 16), (1, 16), (4, 16)])
def test_any_batch_size_runs_for_any_saved_first_dimension(version: Path, shape: tuple[int, int]) -> None:
    save(add_sub(shape), version)
    with serving_version(OpenVinoBackend(), version, ov_config()) as served:
        add_sub_answers(served)
        add_sub_answers(served, (8,))


def test_another_numeric_type_is_converted(version: Path) -> None:
    save(add_sub(), version)
    config = ov_config(datatype="INT32")
    signature = OpenVinoBackend().inspect(version, config)
    assert signature is not None
    assert {tensor.datatype for tensor in (*signature.inputs, *signature.outputs)} == {"INT32"}
    with serving_version(OpenVinoBackend(), version, config) as served:
        add_sub_answers(served, dtype="int32")


def test_operators_that_fix_the_batch_get_padded_rows(version: Path) -> None:
    save(fixed_rows(4), version)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    config = ov_config(["INPUT0"], ["OUTPUT0"], dims=[4], max_batch_size=4)
    with serving_version(OpenVinoBackend(), version, config) as served:
        np.testing.assert_array_equal(served.infer({"INPUT0": rows})["OUTPUT0"], rows)


@pytest.mark.parametrize(
    ("shape", "layout", "max_batch_size", "dims"),
    [
        ((-1, 16), "NC", 4, [16]),
        ((1, 16), "NC", 4, [16]),
        ((-1, 16), "CN", 0, [-1, 16]),
        ((-1, 16), "", 0, [-1, 16]),
        ((2, 16), "", 0, [2, 16]),
    ],
)
def test_layout_decides_about_batching_without_a_configuration(
    version: Path, shape: tuple[int, int], layout: str, max_batch_size: int, dims: list[int]
) -> None:
    save(add_sub(shape, layout=layout), version)
    config = config_of("", backend="openvino")
    auto_complete(config, OpenVinoBackend().inspect(version, config), 4)
    assert config.max_batch_size == max_batch_size
    assert [list(entry.dims) for entry in config.input] == [dims, dims]
    with serving_version(OpenVinoBackend(), version, config) as served:
        add_sub_answers(served, (2,))


@pytest.mark.parametrize(
    ("config", "text", "fields"),
    [
        (ov_config(inputs=["INPUT0"]), "configuration expects 1 inputs, model provides 2", ["input"]),
        (ov_config(inputs=["INPUT0", "OTHER"]), "unexpected inference input 'OTHER'", ["input[1].name"]),
        (ov_config(outputs=["OTHER"]), "unexpected inference output 'OTHER'", ["output[0].name"]),
        (
            ov_config(dims=[15]),
            "the model expects 2 dimensions (shape [-1,16])",
            [f"{side}[{n}].dims" for side in ("input", "output") for n in range(2)],
        ),
    ],
)
def test_configuration_that_contradicts_the_graph_is_refused(
    version: Path, config: ModelConfig, text: str, fields: list[str]
) -> None:
    save(add_sub((4, 16)), version)  # OpenVINO serves other batches than the model's own
    with pytest.raises(InvalidModelConfig) as inspected:
        OpenVinoBackend().inspect(version, config)
    with pytest.raises(InvalidModelConfig) as loaded, serving_version(OpenVinoBackend(), version, config):
        pass
    assert inspected.value.message == loaded.value.message
    assert text in loaded.value.message
    assert [problem.path for problem in loaded.value.problems] == fields


def test_fixed_batch_that_contradicts_the_configuration_fails_the_load(version: Path) -> None:
    save(fixed_rows(1), version)
    config = ov_config(["INPUT0"], ["OUTPUT0"], dims=[4], max_batch_size=4)
    with pytest.raises(InvalidModelConfig) as raised, serving_version(OpenVinoBackend(), version, config):
        pass
    assert "allow no other first dimension" in raised.value.message


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("INFERENCE_NUM_THREADS", "-1", "'INFERENCE_NUM_THREADS' to be a non-negative number, got -1"),
        ("NUM_STREAMS", "many", "'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got many"),
        ("PERFORMANCE_HINT", "fast", "to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"),
        ("HINT_BF16", "No", "'HINT_BF16' to be YES, got no"),
        ("TARGET_DEVICE", "GPU", "supports only Kind CPU and AUTO"),
    ],
)
def test_parameters_without_meaning_are_refused(name: str, value: str, text: str) -> None:
    with pytest.raises(ServerError) as raised:
        OpenVinoBackend().check(ov_config(more=parameter(name, value)))
    assert text in raised.value.message


@pytest.mark.parametrize(
    "more",
    [
        parameter("NUM_STREAMS", "2") + parameter("INFERENCE_NUM_THREADS", "2"),
        parameter("PERFORMANCE_HINT", "throughput"),
        parameter("TARGET_DEVICE", "AUTO"),
        parameter("RESHAPE_IO_LAYERS", "yes"),
    ],
)
def test_parameters_that_change_the_execution_are_accepted(version: Path, more: str) -> None:
    save(add_sub((-1, 16) if "RESHAPE" not in more else (-1, -1)), version)
    with serving_version(OpenVinoBackend(), version, ov_config(more=more)) as served:
        add_sub_answers(served)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:300]), ModelLoadFailed),
        (Path.unlink, RepositoryUnavailable),
    ],
    ids=["cut", "missing"],
)
def test_broken_file_fails_the_load(version: Path, damage: Callable[[Path], object], error: type[ServerError]) -> None:
    save(add_sub(), version)
    damage(version / "model.xml")
    with pytest.raises(error) as raised, serving_version(OpenVinoBackend(), version, ov_config()):
        pass
    assert raised.value.hint


def test_missing_weights_are_named(version: Path) -> None:
    save(product(np.ones((16, 16), np.float32)), version)
    (version / "model.bin").unlink()
    with pytest.raises(ModelLoadFailed) as raised:
        OpenVinoBackend().inspect(version, ov_config())
    assert raised.value.hint == "the weights are missing: put 'model.bin' beside 'model.xml'"
    assert raised.value.message.startswith("openvino error in reading the model : ")


def test_import_sends_no_telemetry() -> None:
    code = "import sys, trident.core.backends.openvino.compiler; print('openvino_telemetry.main' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "False\n"


# --- running time


FLOAT, WHOLE = openvino.Type.f32, openvino.Type.i64


def numbers(*values: int) -> Any:
    return opset13.constant(np.array(values, np.int64))


def count_to_input(rows: Any, size: Any) -> Any:
    first = opset13.squeeze(opset13.gather(size, numbers(0), opset13.constant(0)), opset13.constant(0))
    return opset13.range(opset13.constant(np.int64(0)), first, opset13.constant(np.int64(1)), "i64")


def repeated(rows: Any, size: Any) -> Any:
    """A loop that runs while its condition holds."""
    given = opset13.parameter([-1, 4], FLOAT)
    condition = opset13.result(opset13.constant(np.array([True])))
    made = opset13.result(opset13.relu(given))
    body = openvino.Model([condition, made], [given], "body")
    loop = opset13.loop(opset13.constant(np.int64(3)), opset13.constant(np.array([True])))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 0])
    loop.set_merged_input(given, rows.output(0), made.output(0))
    loop.get_iter_value(made.output(0), -1)
    return loop


@pytest.mark.parametrize(
    ("operator", "bounded"),
    [
        (lambda rows, size: opset13.matmul(rows, opset13.constant(np.ones((4, 2), np.float32)), False, False), True),
        (lambda rows, size: opset13.tile(rows, numbers(2, 1)), True),
        (lambda rows, size: opset13.tile(rows, size), False),
        (lambda rows, size: opset13.broadcast(opset13.constant(np.float32(1)), size), False),
        (count_to_input, False),
        (repeated, False),
    ],
    ids=["product", "tile by constant", "tile by input", "broadcast to input", "count to input", "loop"],
)
def test_graph_has_bounded_work_unless_it_depends_on_values(operator: Any, bounded: bool) -> None:
    rows = opset13.parameter([-1, 4], FLOAT, name="rows")
    size = opset13.parameter([2], WHOLE, name="size")
    model = openvino.Model([opset13.result(operator(rows, size))], [rows, size], "model")
    assert has_bounded_graph(model) is bounded
