"""Plans, served through the fake TensorRT on memory of the CPU, and compared with numpy."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.backend_serving import Serving, serving_version
from tests.unit.core.backends.tensorrt import fake_tensorrt, plans
from tests.unit.core.backends.tensorrt.plans import ON_GPU, add_sub, backend_on, tensor, trt_config, write_plan
from tests.unit.core.cuda.fake_cuda import FakeCuda
from trident.core.backends.tensorrt.engine import EngineError, error_of, is_poison, load_failure_of
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.cuda import CudaError
from trident.core.errors import (
    BackendFailed,
    ConfigInvalid,
    DeviceLost,
    ModelLoadFailed,
    OutOfMemory,
    RepositoryUnavailable,
    ServerError,
    Unsupported,
)
from trident.core.inference.tensors import BY_NAME

KINDS = {"FLOAT": "FP32", "HALF": "FP16", "BF16": "BF16", "INT8": "INT8", "INT32": "INT32", "INT64": "INT64"}
KINDS |= {"UINT8": "UINT8", "BOOL": "BOOL"}


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    """Everything that a test has taken of the device is given back."""
    library = FakeCuda()
    yield library
    assert (library.memory, library.pinned, library.open_streams, library.open_events) == ({}, {}, {}, {})


@contextmanager
def serving(
    folder: Path, content: bytes, cuda: FakeCuda, config: ModelConfig | None = None, profiles: tuple[str, ...] = ()
) -> Iterator[Serving]:
    """The plan, served with the configuration that it completes."""
    backend = backend_on(cuda)
    config = trt_config() if config is None else config
    version = write_plan(folder / "1", content)
    backend.complete(version, config)
    with serving_version(backend, version, config, placement=replace(ON_GPU, profiles=profiles)) as served:
        yield served


def completed(folder: Path, content: bytes, cuda: FakeCuda, text: str = "", group: str = "") -> ModelConfig:
    config = trt_config(text, group=group)
    backend_on(cuda).complete(write_plan(folder / "1", content), config)
    return config


def load(folder: Path, content: bytes, cuda: FakeCuda, text: str, **settings: str) -> None:
    config = trt_config(text)
    with serving_version(backend_on(cuda, settings), write_plan(folder / "1", content), config, placement=ON_GPU):
        pass


def test_plan_without_a_configuration_is_completed_and_served(tmp_path: Path, cuda: FakeCuda) -> None:
    with serving(tmp_path, add_sub(), cuda) as served:
        assert served.spec.max_batch_size == 8
        assert served.spec.batching is not None
        assert served.model.describe() == {
            "device": "gpu:0",
            "execution provider": "TensorRT 10.9.0.34",
            "threads": "none",
        }
        given = np.arange(32, dtype=np.float32).reshape(2, 16)
        first = served.infer({"INPUT0": given, "INPUT1": given * 2})
        np.testing.assert_array_equal(first["OUTPUT0"], given * 3)
        # An answer is not written to by a later execution.
        served.infer({"INPUT0": given * 9, "INPUT1": given})
        np.testing.assert_array_equal(first["OUTPUT0"], given * 3)
        np.testing.assert_array_equal(first["OUTPUT1"], -given)


@pytest.mark.parametrize(("kind", "datatype"), KINDS.items())
def test_every_datatype_is_served(tmp_path: Path, cuda: FakeCuda, kind: str, datatype: str) -> None:
    with serving(tmp_path, plans.identity(kind), cuda) as served:
        assert served.spec.inputs["INPUT0"].datatype is BY_NAME[datatype]
        given = (np.arange(32).reshape(2, 16) % 2).astype(BY_NAME[datatype].dtype)
        np.testing.assert_array_equal(served.infer({"INPUT0": given})["OUTPUT0"], given)


def test_output_shaped_by_values_is_served(tmp_path: Path, cuda: FakeCuda) -> None:
    config = trt_config(
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 } output { name: "OUTPUT0" data_type: TYPE_INT64 '
        "dims: [ -1, 1 ] }"
    )
    with serving(tmp_path, plans.nonzero(), cuda, config) as served:
        assert served.spec.max_batch_size == 0
        for values in ([0, 1, 0, 2], [0, 0, 0, 0], [3] * 50):
            answer = served.infer({"INPUT0": np.array(values, np.float32)})
            np.testing.assert_array_equal(answer["OUTPUT0"].reshape(-1), np.flatnonzero(values))
        cuda.limit = 300
        with pytest.raises(OutOfMemory, match=r"cuMemAlloc_v2 failed with CUDA error 2|OutOfMemory"):
            served.infer({"INPUT0": np.ones(64, np.float32)})
        cuda.limit = 1 << 30
        assert len(served.infer({"INPUT0": np.ones(64, np.float32)})["OUTPUT0"]) == 64


def test_shape_tensors_are_host_values_without_batch_dimension(tmp_path: Path, cuda: FakeCuda) -> None:
    with serving(tmp_path, plans.fill(), cuda) as served:
        spec = served.spec
        assert (spec.max_batch_size, spec.inputs["SHAPE"].dims, spec.outputs["FILLED_SHAPE"].dims) == (8, (2,), (2,))
        shape = np.array([3, 5], np.int32)
        answers = served.execute(
            [served.request({"SHAPE": shape, "VALUE": np.full((rows, 1), rows, np.float32)}) for rows in (1, 2)]
        )
        for rows, answer in zip((1, 2), answers, strict=True):
            np.testing.assert_array_equal(answer["FILLED"], np.full((rows, 3, 5), rows, np.float32))
            np.testing.assert_array_equal(answer["FILLED_SHAPE"], [[3, 5]] * rows)
        text = "The shape value at index 2 is expected to be in range from 1 to 32, Got: 33"
        with pytest.raises(BackendFailed, match=text):
            served.infer({"SHAPE": np.array([3, 33], np.int32), "VALUE": np.ones((1, 1), np.float32)})


def test_ragged_requests_get_batch_inputs(tmp_path: Path, cuda: FakeCuda) -> None:
    config = trt_config(
        """
        max_batch_size: 8
        input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
        batch_input { kind: BATCH_ELEMENT_COUNT target_name: "COUNTS" data_type: TYPE_FP32 source_input: "INPUT0" }
        batch_output { target_name: "OUTPUT0" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "INPUT0" }
        """
    )
    with serving(tmp_path, plans.ragged(), cuda, config) as served:
        given = [np.arange(count, dtype=np.float32).reshape(1, -1) for count in (3, 5)]
        answers = served.execute([served.request({"INPUT0": each}) for each in given])
        for each, answer in zip(given, answers, strict=True):
            np.testing.assert_array_equal(answer["OUTPUT0"], each)


def test_plan_for_one_size_of_batch_is_padded_to_it(tmp_path: Path, cuda: FakeCuda) -> None:
    buckets = 'parameters { key: "BATCH_BUCKETS" value { string_value: "4" } }'
    with serving(tmp_path, add_sub((4, 16)), cuda, trt_config(buckets)) as served:
        assert served.spec.max_batch_size == 4
        given = [np.full((rows, 16), rows, np.float32) for rows in (1, 2)]
        answers = served.execute([served.request({"INPUT0": each, "INPUT1": each}) for each in given])
        for each, answer in zip(given, answers, strict=True):
            np.testing.assert_array_equal(answer["OUTPUT0"], each * 2)


def test_nearest_profile_runs_a_batch(tmp_path: Path, cuda: FakeCuda) -> None:
    small, large = ((1, 4), (1, 4), (2, 8)), ((1, 4), (16, 32), (16, 32))
    with serving(
        tmp_path, add_sub((-1, -1), small, large), cuda, trt_config(group='profile: ["0", "1"]'), profiles=("0", "1")
    ) as served:
        assert served.spec.max_batch_size == 16
        for shape in ((1, 4), (16, 32), (2, 9), (1, 4)):
            given = np.ones(shape, np.float32)
            np.testing.assert_array_equal(served.infer({"INPUT0": given, "INPUT1": given})["OUTPUT0"], given * 2)
        given = np.ones((1, 33), np.float32)
        with pytest.raises(BackendFailed) as caught:
            served.infer({"INPUT0": given, "INPUT1": given})
        assert caught.value.message == (
            "request specifies invalid shape for input 'INPUT0' for model_0. Error details: model expected the shape "
            "of dimension 1 to be between 4 and 8 but received 33"
        )


def test_unloaded_engine_is_freed(tmp_path: Path, cuda: FakeCuda) -> None:
    gc.collect()
    before = len(fake_tensorrt.ENGINES)
    with serving(tmp_path, add_sub(), cuda) as served:
        given = np.ones((1, 16), np.float32)
        served.infer({"INPUT0": given, "INPUT1": given})
        # That of the completion is gone already.
        gc.collect()
        assert len(fake_tensorrt.ENGINES) == before + 1
    del served
    gc.collect()
    assert len(fake_tensorrt.ENGINES) == before


def test_lost_context_poisons_the_instance(tmp_path: Path, cuda: FakeCuda, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path, add_sub(), cuda) as served:
        given = np.ones((1, 16), np.float32)
        cuda.failing = "cuEventSynchronize"
        with pytest.raises(BackendFailed, match="unable to enqueue for inference model: cuEventSynchronize failed"):
            served.infer({"INPUT0": given, "INPUT1": given})
        assert served.instance.poisoned
        # A lost GPU gives nothing back, which must not keep the model from being unloaded.
        cuda.failing = ""
        other = served.model.instance(replace(ON_GPU, name="model_1"))
        cuda.failing = "cuStreamDestroy_v2"
        with caplog.at_level(logging.WARNING):
            other.close()
        assert "memory of 'model_1' on GPU 0 was not freed: cuStreamDestroy_v2 failed" in caplog.text
        cuda.failing = ""
        cuda.forget_streams_but(1)


def test_out_of_memory_is_reported(tmp_path: Path, cuda: FakeCuda) -> None:
    with serving(tmp_path, add_sub(), cuda) as served:
        cuda.limit = 100
        given = np.ones((1, 16), np.float32)
        with pytest.raises(OutOfMemory, match="CUDA error 2"):
            served.infer({"INPUT0": given, "INPUT1": given})
        assert not served.instance.poisoned
        cuda.limit = 1 << 30
        assert served.infer({"INPUT0": given, "INPUT1": given})["OUTPUT0"][0, 0] == 2


# --- completion


@pytest.mark.parametrize(
    ("content", "text", "size", "dims"),
    [
        (add_sub(), "", 8, [16]),
        (add_sub(), "max_batch_size: 4", 4, [16]),
        (add_sub((-1, -1), ((1, 1), (2, 2), (6, 64))), "", 6, [-1]),
        (add_sub((1, 16)), "", 1, [16]),
        (add_sub(), 'input { name: "INPUT0" }', 8, [16]),
        (add_sub(), 'input { name: "INPUT0" dims: [ -1, 16 ] }', 0, [-1, 16]),
    ],
)
def test_configuration_is_completed_from_the_plan(
    tmp_path: Path, cuda: FakeCuda, content: bytes, text: str, size: int, dims: list[int]
) -> None:
    config = completed(tmp_path, content, cuda, text)
    assert (config.max_batch_size, list(config.input[0].dims)) == (size, dims)
    assert config.input[0].data_type == BY_NAME["FP32"].config_number
    assert [entry.name for entry in config.output] == ["OUTPUT0", "OUTPUT1"]
    assert config.HasField("dynamic_batching") is (size > 1)


@pytest.mark.parametrize(
    ("text", "group", "error", "message"),
    [
        ("max_batch_size: 9", "", BackendFailed, "specified max-batch 9 but TensorRT engine only supports max-batch 8"),
        (
            'input { name: "INPUT0" dims: 16 } input { name: "INPUT1" dims: [ -1, 16 ] }',
            "",
            BackendFailed,
            "are contradicting each other in terms of whether batching is supported",
        ),
        ("", 'profile: "3"', BackendFailed, "invalid profile 3 . Number of profiles supported by TensorRT engine: 1"),
        ('input { name: "INPUT0" is_shape_tensor: true }', "", ConfigInvalid, "specified as a shape tensor."),
        (
            'input { name: "INPUT0" is_non_linear_format_io: true }',
            "",
            ConfigInvalid,
            "'INPUT0' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true",
        ),
    ],
)
def test_configurations_that_contradict_the_engine_are_refused(
    tmp_path: Path, cuda: FakeCuda, text: str, group: str, error: type[ServerError], message: str
) -> None:
    with pytest.raises(error) as caught:
        completed(tmp_path, add_sub(), cuda, text, group)
    assert message in caught.value.message


# --- load

FULL = """
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
input { name: "INPUT1" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT1" data_type: TYPE_FP32 dims: 16 }
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FULL.replace("TYPE_FP32", "TYPE_INT8", 1), "unexpected datatype TYPE_FP32 for inference input 'INPUT0', "),
        (FULL.replace('"INPUT1"', '"X"'), "unexpected inference input 'X', allowed inputs are: INPUT0, INPUT1"),
        (
            FULL.replace("dims: 16", "dims: [ 4, 4 ]", 1),
            "model 'model', tensor 'INPUT0': the model expects 2 dimensions",
        ),
        (FULL.replace("dims: 16", "dims: 17", 1), "model 'model', tensor 'INPUT0': the model expects 2 dimensions"),
        (FULL[: FULL.index("output")] + FULL[FULL.rindex("output") :], "expected configuration for output 'OUTPUT0'"),
        (
            FULL + 'input { name: "Y" data_type: TYPE_FP32 dims: 16 }',
            "unable to load model 'model', configuration expects 3 inputs, model provides at most 2",
        ),
        (
            FULL.replace('input { name: "INPUT1" data_type: TYPE_FP32 dims: 16 }', ""),
            "failed to specify the dimensions of all input tensors or values of all input shape tensors",
        ),
    ],
)
def test_configuration_that_contradicts_the_engine_fails_the_load(
    tmp_path: Path, cuda: FakeCuda, text: str, message: str
) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        load(tmp_path, add_sub(), cuda, text)
    assert any(problem.message.startswith(message) for problem in caught.value.problems), caught.value.problems


def test_dimension_outside_of_the_profile_is_found_at_load(tmp_path: Path, cuda: FakeCuda) -> None:
    text = FULL.replace("dims: 16", "dims: 33")
    with pytest.raises(InvalidModelConfig) as caught:
        load(tmp_path, add_sub((-1, -1), ((1, 4), (8, 8), (8, 32))), cuda, text)
    assert caught.value.message == (
        "model configuration specified invalid shape for input 'INPUT0' for model model. Error details: model expected "
        "the shape of dimension 1 to be between 4 and 32 but received 33"
    )
    load(tmp_path, add_sub((-1, -1), ((1, 4), (8, 8), (8, 32))), cuda, text.replace("33", "32"))


def test_other_formats_and_datatypes_are_refused(tmp_path: Path, cuda: FakeCuda) -> None:
    chw2 = fake_tensorrt.plan([tensor("INPUT0", (8, 16), format="CHW2")], [tensor("OUTPUT0", (8, 16))], "identity")
    one = 'input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 } '
    one += 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }'
    with pytest.raises(Unsupported, match="tensor 'INPUT0' has another format than linear"):
        load(tmp_path, chw2, cuda, one)
    with pytest.raises(InvalidModelConfig, match="unsupported datatype 'FP8' for tensor 'INPUT0' for model 'model'"):
        load(tmp_path, plans.identity("FP8"), cuda, "max_batch_size: 8 " + one)


@pytest.mark.parametrize(
    ("group", "text", "message"),
    [
        ("kind: KIND_CPU", "", "unable to load model 'model', TensorRT backend supports only GPU device"),
        (
            "kind: KIND_GPU gpus: 0 secondary_devices { kind: KIND_NVDLA device_id: 1 }",
            "",
            "unable to create TensorRT runtime with DLA Core ID: 1, available number of DLA cores: 0",
        ),
        (
            "kind: KIND_GPU gpus: 0",
            'parameters { key: "execution_context_allocation_strategy" value { string_value: "X" } }',
            "Invalid value for 'execution_context_allocation_strategy': 'X' for model instance 'model'. Supported "
            "values are 'STATIC' and 'ON_PROFILE_CHANGE'.",
        ),
    ],
)
def test_unsupported_groups_and_settings_are_refused(cuda: FakeCuda, group: str, text: str, message: str) -> None:
    config = trt_config(text)
    del config.instance_group[:]
    config.MergeFrom(plans.config_of(f"instance_group {{ count: 1 {group} }}", backend="tensorrt"))
    with pytest.raises(ConfigInvalid) as caught:
        backend_on(cuda).check(config)
    assert caught.value.message == message


# --- files

META = b'{"description": "a model", "batch": 1}'


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"\x08\x0a\x12\x07pytorch", "may be an ONNX model: build a plan with trtexec"),
        (len(META).to_bytes(4, "little") + META + add_sub(), "a text about the model before the plan"),
        (b"\x00" * 100, "does not begin as plans of TensorRT 8 and later do"),
    ],
)
def test_invalid_plan_is_refused(tmp_path: Path, cuda: FakeCuda, content: bytes, hint: str) -> None:
    with pytest.raises(ModelLoadFailed) as caught:
        completed(tmp_path, content, cuda)
    assert caught.value.message == f"unable to load plan file to auto complete config: {tmp_path / '1' / 'model.plan'}"
    assert hint in str(caught.value.hint)


def test_plans_of_other_versions_and_truncated_plans_are_refused(tmp_path: Path, cuda: FakeCuda) -> None:
    newer = add_sub(version=(11, 4, 0, 106))
    with pytest.raises(
        ModelLoadFailed, match="unable to create TensorRT engine: The engine plan file is not"
    ) as caught:
        completed(tmp_path, newer, cuda)
    assert "built by TensorRT 11.4.0 (build 106); TensorRT 10.9.0.34 is installed" in str(caught.value.hint)
    backend = backend_on(cuda, {"version-compatible": "true"})
    backend.complete(tmp_path / "1", trt_config())
    with pytest.raises(ModelLoadFailed, match="unable to create TensorRT engine: Error Code 1: Serialization") as cut:
        completed(tmp_path, add_sub()[:-40], cuda)
    assert "incomplete" in str(cut.value.hint)


def test_missing_gpu_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="unable to create TensorRT runtime: there is no GPU"):
        backend_on(None).complete(write_plan(tmp_path / "1", add_sub()), trt_config())


def test_failed_runtime_is_not_used(tmp_path: Path, cuda: FakeCuda) -> None:
    """With a driver that is too old TensorRT logs, and returns an object whose use would end the process."""
    text = "createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure with error: 35)"

    ended: list[str] = []

    class Runtime(fake_tensorrt.Runtime):
        def __init__(self, logger: fake_tensorrt.ILogger) -> None:
            logger.log(fake_tensorrt.ILogger.Severity.ERROR, text)

        def deserialize_cuda_engine(self, serialized_engine: bytes) -> fake_tensorrt.ICudaEngine | None:
            raise AssertionError("the process has ended")

        def __del__(self) -> None:
            ended.append("the process has ended")

    module = SimpleNamespace(**{**vars(fake_tensorrt), "Runtime": Runtime})
    with pytest.raises(ModelLoadFailed) as caught:
        backend_on(cuda, module=module).complete(write_plan(tmp_path / "1", add_sub()), trt_config())
    assert caught.value.message == f"unable to create TensorRT runtime: {text}"
    del caught
    gc.collect()
    assert not ended


def test_plans_under_another_name_are_suggested(tmp_path: Path, cuda: FakeCuda) -> None:
    version = write_plan(tmp_path / "1", add_sub(), "yolo.engine")
    with pytest.raises(RepositoryUnavailable, match="for model instance 'model'") as caught:
        backend_on(cuda).complete(version, trt_config())
    assert "found model/1/yolo.engine, expected model/1/model.plan: rename it" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"execution-policy": "X"}, "unknown execution-policy 'X'"),
        ({"coalesce-request-input": "x"}, "failed to convert 'x' to boolean"),
        ({"version-compatible": "x"}, "failed to convert 'x' to boolean"),
        ({"plugins": "/nowhere/x"}, "unable to load plugin library '/nowhere/x' of TensorRT"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, cuda: FakeCuda, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigInvalid, match=message):
        load(tmp_path, add_sub(), cuda, FULL, **settings)


# --- errors


ACCESS = "[genericReformat.cu::execute::1] Error Code 1: Cuda Runtime (an illegal memory access was encountered)"
SHAPE = "Error Code 3: API Usage Error (set dimension is out of its profile)"


@pytest.mark.parametrize(
    ("exc", "kind", "poison"),
    [
        (EngineError("[defaultAllocator.cpp] Error Code 1: Cuda Runtime (out of memory)"), OutOfMemory, False),
        (EngineError("[executionContext.cpp] Error Code 2: OutOfMemory (Requested size was 9)"), OutOfMemory, False),
        (EngineError(ACCESS), BackendFailed, True),
        (EngineError(SHAPE), BackendFailed, False),
        (RuntimeError("infer_shapes failed"), BackendFailed, False),
        (CudaError("cuMemAlloc_v2 failed with CUDA error 2", 2), OutOfMemory, False),
        (CudaError("cuEventSynchronize failed with CUDA error 719", 719), BackendFailed, True),
        (CudaError("cuStreamCreateWithPriority failed with CUDA error 201", 201), BackendFailed, False),
    ],
)
def test_failures_have_their_classes(exc: Exception, kind: type[Exception], poison: bool) -> None:
    error = error_of(exc, "m")
    assert type(error) is kind
    assert error.message == f"unable to enqueue for inference m: {exc}"
    assert is_poison(exc) is poison
    at_load = load_failure_of(exc, "unable to create TensorRT context", 1)
    assert type(at_load) is (DeviceLost if poison else ModelLoadFailed if kind is BackendFailed else kind)
    assert at_load.message == f"unable to create TensorRT context: {exc}"
    assert getattr(at_load, "device", "gpu:1") == "gpu:1"
