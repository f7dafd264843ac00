"""Batches executed on real models: datatypes, shapes, strings, batch inputs, failures."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from tests.unit import onnx_models
from tests.unit.backend_serving import strings, tensor_text
from tests.unit.onnx_serving import add_sub_config, identity_config, serving
from trident.core.errors import BackendFailed, OutOfMemory
from trident.core.inference.tensors import BY_NAME, Array

PICKY = (
    "max_batch_size: 8\n" + tensor_text("input", "INDEX", "INT64", [1]) + tensor_text("output", "VALUE", "FP32", [1])
)
RAGGED_INPUT = tensor_text("input", "INPUT0", "FP32", [-1], "allow_ragged_batch: true")
SCATTERED = "batch_output { target_name: 'DOUBLED' kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: 'INPUT0' }\n"


def samples(datatype: str, shape: tuple[int, ...]) -> Array:
    """Different values that use the whole width of the datatype."""
    dtype = BY_NAME[datatype].dtype
    if datatype == "BOOL":
        return np.random.default_rng(0).random(shape) < 0.5
    if dtype.kind == "f":
        return np.random.default_rng(0).normal(size=shape).astype(dtype)
    limits = np.iinfo(dtype)
    return np.random.default_rng(0).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def ragged_config(kind: str) -> str:
    return (
        "max_batch_size: 8\n"
        + RAGGED_INPUT
        + f"batch_input {{ kind: {kind} target_name: 'COUNTS' data_type: TYPE_FP32 source_input: 'INPUT0' }}\n"
        + tensor_text("output", "DOUBLED", "FP32", [-1])
        + SCATTERED
    )


def test_inputs_may_have_any_order(tmp_path: Path) -> None:
    with serving(onnx_models.add_sub(), add_sub_config(), tmp_path) as model:
        three, two = np.full((1, 16), 3, np.int32), np.full((1, 16), 2, np.int32)
        straight = model.request({"INPUT0": three, "INPUT1": two})
        crossed = model.request({"INPUT1": two, "INPUT0": three})
        for answer in model.execute([straight, crossed, straight]):
            assert answer["OUTPUT1"][0, 0] == 1


@pytest.mark.parametrize("width", [4, 40_000])
def test_outputs_do_not_change_when_the_next_batch_runs(tmp_path: Path, width: int) -> None:
    """Inputs are gathered into memory that is reused. Results must not be in it, even if the model computes nothing."""
    with serving(onnx_models.identity(), identity_config("FP32", [-1]), tmp_path) as model:
        kept = []
        for value in range(4):
            requests = [model.request({"INPUT0": np.full((1, width), value + n, np.float32)}) for n in (0.0, 0.5)]
            kept.append(model.execute(requests))
        for value, answers in enumerate(kept):
            assert [float(a["OUTPUT0"].max()) for a in answers] == [value, value + 0.5]
            assert [float(a["OUTPUT0"].min()) for a in answers] == [value, value + 0.5]


def test_a_scalar_gets_the_configured_dims(tmp_path: Path) -> None:
    for dims in ([1], [1, 1]):
        with serving(onnx_models.scalar(), identity_config("FP32", dims, 0), tmp_path / str(len(dims))) as model:
            answer = model.infer({"INPUT0": np.full(dims, 2.5, np.float32)})["OUTPUT0"]
            assert answer.shape == tuple(dims)
            assert float(answer.max()) == 2.5


def test_an_input_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    text = tensor_text("input", "INPUT0", "FP32", [4]) + tensor_text("input", "OFFSET", "FP32", [4], "optional: true")
    with serving(onnx_models.with_default(), text + tensor_text("output", "OUTPUT0", "FP32", [4]), tmp_path) as model:
        ones = np.ones(4, np.float32)
        assert model.infer({"INPUT0": ones})["OUTPUT0"].tolist() == [11, 21, 31, 41]
        assert model.infer({"INPUT0": ones, "OFFSET": ones})["OUTPUT0"].tolist() == [2, 2, 2, 2]


def test_a_model_may_return_bytes_for_text(tmp_path: Path) -> None:
    text = tensor_text("input", "INPUT0", "BYTES", [-1]) + tensor_text("output", "OUTPUT0", "BYTES", [-1])
    text += tensor_text("output", "ANSWER", "BYTES", [1])
    with serving(onnx_models.answering(b"\xff\0!"), text, tmp_path) as model:
        answer = model.infer({"INPUT0": strings(b"text", shape=(1,))})
        assert answer["OUTPUT0"].tolist() == [b"text"]
        assert answer["ANSWER"].tolist() == [b"\xff\0!"]


def test_a_tensor_of_strings_may_be_empty(tmp_path: Path) -> None:
    with serving(onnx_models.strings(), identity_config("BYTES", [-1]), tmp_path) as model:
        answer = model.infer({"INPUT0": strings(shape=(1, 0))})["OUTPUT0"]
        assert answer.shape == (1, 0)
        assert answer.dtype == object


def test_a_model_may_turn_text_into_numbers(tmp_path: Path) -> None:
    text = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", "BYTES", [-1])
    text += tensor_text("output", "OUTPUT0", "FP32", [-1])
    with serving(onnx_models.string_to_number(), text, tmp_path) as model:
        assert model.infer({"INPUT0": strings(b"1.5", b"-2")})["OUTPUT0"].tolist() == [[1.5, -2]]
        with pytest.raises(BackendFailed):
            model.infer({"INPUT0": strings(b"many", b"few")})
        with pytest.raises(BackendFailed):
            model.infer({"INPUT0": strings(b"\xff", b"few")})
        assert model.infer({"INPUT0": strings(b"7")})["OUTPUT0"].tolist() == [[7]]


def test_a_failed_run_has_tritons_text(tmp_path: Path) -> None:
    with serving(onnx_models.picky(), PICKY, tmp_path) as model:
        with pytest.raises(BackendFailed) as caught:
            model.infer({"INDEX": np.array([[9]])})
        assert caught.value.message.startswith("onnx runtime error 2: Non-zero status code returned while running Gat")
        assert caught.value.reason.startswith("Internal: ")
        assert caught.value.__cause__ is not None
        assert not model.instance.poisoned
        assert model.infer({"INDEX": np.array([[3]])})["VALUE"].tolist() == [[30]]


def test_out_of_memory_has_its_own_error(tmp_path: Path) -> None:
    text = tensor_text("input", "SIZE", "INT64", [1]) + tensor_text("output", "ZEROS", "FP32", [-1])
    with serving(onnx_models.allocating(), text, tmp_path) as model:
        assert model.infer({"SIZE": np.array([3])})["ZEROS"].tolist() == [0, 0, 0]
        with pytest.raises(OutOfMemory, match="Failed to allocate memory for requested buffer"):
            model.infer({"SIZE": np.array([1 << 46])})
        assert model.infer({"SIZE": np.array([1])})["ZEROS"].tolist() == [0]


def test_a_result_with_another_first_dimension_fails_the_batch(tmp_path: Path) -> None:
    text = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", "FP32", [-1])
    text += tensor_text("output", "OUTPUT0", "FP32", [-1])
    with serving(onnx_models.doubling_rows(), text, tmp_path) as model:
        for requests in (1, 2):
            batch = [model.request({"INPUT0": np.ones((1, 2), np.float32)}) for _ in range(requests)]
            with pytest.raises(BackendFailed, match=r"'OUTPUT0' of 'model' has shape \[\d,2\] for a batch of"):
                model.execute(batch)


def test_ragged_outputs_are_split_by_the_shapes_of_the_inputs(tmp_path: Path) -> None:
    with serving(onnx_models.ragged(), ragged_config("BATCH_ELEMENT_COUNT"), tmp_path) as model:
        values = [np.arange(n, dtype=np.float32).reshape(1, n) for n in (2, 4, 1, 3)]
        answers = model.execute([model.request({"INPUT0": value}) for value in values])
        for value, answer in zip(values, answers, strict=True):
            assert answer["DOUBLED"].tolist() == (value * 2).tolist()
        assert model.infer({"INPUT0": values[1]})["DOUBLED"].tolist() == (values[1] * 2).tolist()


def test_an_instance_keeps_nothing_of_a_batch(tmp_path: Path) -> None:
    for datatype in ("FP32", "BF16", "BYTES"):
        config = identity_config(datatype, [-1])
        with serving(onnx_models.identity(datatype), config, tmp_path / datatype) as model:
            value = strings(b"\xff", b"x") if datatype == "BYTES" else samples(datatype, (1, 2))
            requests = [model.request({"INPUT0": value}) for _ in range(2)]
            arrays = [weakref.ref(tensor.array) for request in requests for tensor in request.inputs]
            model.execute(requests)
            model.execute(requests[:1])
            del requests, value
            gc.collect()
            assert [array() for array in arrays] == [None, None]


def test_the_times_of_an_execution_are_in_order(tmp_path: Path) -> None:
    with serving(onnx_models.add_sub(), add_sub_config(), tmp_path) as model:
        ones = np.ones((1, 16), np.int32)
        execution = model.run([model.request({"INPUT0": ones, "INPUT1": ones})])
        assert 0 < execution.input_end_ns < execution.output_start_ns
