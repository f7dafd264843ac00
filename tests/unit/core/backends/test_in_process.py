"""Models whose framework runs in this process: weights by device, padding, and tensors in CUDA shared memory.

For the last there is a driver with memory of the CPU, and real ONNX Runtime and the fake TensorRT on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit import onnx_models
from tests.unit.backend_serving import config_of, serving_version, spec_of, tensor_text
from tests.unit.bucket_configs import bucket_model, bucket_text
from tests.unit.core.backends.tensorrt.plans import ON_GPU, add_sub, backend_on, trt_config, write_plan
from tests.unit.core.cuda.fake_cuda import FakeCuda
from tests.unit.onnx_serving import add_sub_config, serving, session_of
from trident.core.backends.backend import BackendInstance, LoadContext
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Runner, length_axes, may_bind
from trident.core.backends.onnxruntime.runs import ValueRun
from trident.core.backends.onnxruntime.session import FAILURES, failure_of
from trident.core.backends.tensors import SteadySizes
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.request_check import RequestValidator
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.cuda import CudaDriver
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, OutputTensor, RegionInput, RegionReference, RegionRequest
from trident.core.inference.tensors import Array
from trident.core.shared_memory import Regions, attach

CPU = Placement("model_0", DeviceKind.CPU)
GPU = Placement("model_0", DeviceKind.GPU, 1)


def model_of(
    load: Callable[[Placement], Any],
    runner: Callable[[Any, Placement], Runner],
    config: ModelConfig,
    placements: Sequence[Placement] = (),
) -> InProcessModel:
    context = LoadContext(path=Path(), config=config, spec=spec_of(config), placements=tuple(placements))
    failures = Failures(FAILURES, failure_of)
    return InProcessModel(context, Framework(load=load, runner=runner, failures=failures, provider=str, threads="1"))


def test_batch_larger_than_a_steady_size_runs_in_parts() -> None:
    ran: list[int] = []

    def run(names: list[str], feed: Any, options: Any) -> list[Array]:
        ran.append(len(feed["INPUT0"]))
        return [feed["INPUT0"] * 2]

    text = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", "FP32", [1])
    config = config_of(text + tensor_text("output", "OUTPUT0", "FP32", [1]))
    model = model_of(lambda _: None, lambda *_: Runner(run=run, steady=SteadySizes({2: 1.0}, 1.0)), config, [CPU])
    arrays = [np.array([[1], [2]], np.float32), np.array([[3]], np.float32)]
    requests = [InferenceRequest("m", [InputTensor("INPUT0", "FP32", each.shape, each)]) for each in arrays]
    outcomes: Any = model.instance(CPU).execute(requests, [2, 1]).outputs
    assert [[output.array.tolist() for output in outputs] for outputs in outcomes] == [[[[2], [4]]], [[[6]]]]
    assert ran == [2, 2]


# --- weights


class Weighing:
    """Loads weights that are numbered, and makes instances that tell which they have got."""

    def __init__(self, *placements: Placement) -> None:
        self.made: list[str] = []
        self.used: list[str] = []
        self.model = model_of(self.load, self.runner, config_of(add_sub_config()), placements)

    def load(self, placement: Placement) -> str:
        self.made.append(f"{len(self.made)} on {placement.device}")
        return self.made[-1]

    def runner(self, weights: str, placement: Placement) -> Runner:
        self.used.append(weights)
        return Runner(run=lambda names, feed, options: [])


def test_weights_are_loaded_once_per_device_by_concurrent_threads() -> None:
    weighing = Weighing()
    barrier = threading.Barrier(4)

    def use(number: int) -> None:
        barrier.wait()
        weighing.model.instance(Placement(f"model_{number}", DeviceKind.CPU))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    assert (weighing.made, weighing.used) == (["0 on cpu"], ["0 on cpu"] * 4)


def test_released_device_is_loaded_again() -> None:
    weighing = Weighing(CPU, GPU)
    weighing.model.retain(["gpu:1"])
    assert dict(weighing.model.loaded) == {"gpu:1": "1 on gpu:1"}
    for placement in (CPU, GPU):
        weighing.model.instance(placement)
    assert weighing.used == ["2 on cpu", "1 on gpu:1"]
    assert weighing.model.describe()["device"] == "gpu:1, cpu"


# --- padding

VIEW = (
    bucket_text(BATCH_BUCKETS="1,4,8", LENGTH_BUCKETS="4,8", LENGTH_PAD_VALUES="INPUT0=100")
    + tensor_text("output", "SEEN", "INT64", [2])
    + tensor_text("output", "SHAPES_OUT", "INT32", [-1])
    + 'batch_input { kind: BATCH_ITEM_SHAPE target_name: "SHAPES" data_type: TYPE_INT32 source_input: "INPUT0" }'
)


def test_graph_gets_padded_lengths_and_requests_get_their_own(tmp_path: Path) -> None:
    lengths = (5, 8, 2)
    with serving(onnx_models.padded_view(), VIEW, tmp_path) as model:
        arrays = [np.full((1, length), length, np.float32) for length in lengths]
        answers = model.execute([model.request({"INPUT0": array}) for array in arrays])
    assert [answer["OUTPUT0"].tolist() for answer in answers] == [array.tolist() for array in arrays]
    assert [answer["SHAPES_OUT"].tolist() for answer in answers] == [[[length]] for length in lengths]
    assert [answer["SEEN"].tolist() for answer in answers] == [[[4, 8]]] * 3


SECOND_OUTPUT = tensor_text("output", "SECOND", "FP32", [4, -1])
NAMED = {"OUTPUT0": [1], "SECOND": [0, 2], "NOT_SERVED": [1]}


def test_named_dimension_is_cut_to_the_request(caplog: pytest.LogCaptureFixture) -> None:
    text = bucket_text(LENGTH_BUCKETS="4") + SECOND_OUTPUT
    assert length_axes(*bucket_model(text), NAMED) == {"OUTPUT0": (1,), "SECOND": (2,)}
    assert caplog.text == ""


def test_length_dimension_is_that_before_the_reshape() -> None:
    text = bucket_text(max_batch_size=0, LENGTH_BUCKETS="4", LENGTH_OUTPUTS="SECOND")
    text += tensor_text("output", "SECOND", "FP32", [-1, 6], "reshape { shape: [ 2, -1, 3 ] }")
    assert length_axes(*bucket_model(text), {}) == {"SECOND": (1,)}


# --- tensors on the GPU

ROW = np.arange(16, dtype=np.float32)
SIZE = ROW.nbytes
FIRST, SECOND, SUM, DIFFERENCE = 0, 256, 512, 768
COPIES = {"cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2"}


@dataclass
class Client:
    """Has an allocation on GPU 0, registered as `r`, with two inputs in it."""

    cuda: FakeCuda
    regions: Regions
    spec: ModelSpec
    instance: BackendInstance
    handle: bytes

    def request(
        self,
        inputs: tuple[int | None, int | None] = (FIRST, SECOND),
        outputs: dict[str, RegionReference] | None = None,
        rows: int = 1,
    ) -> tuple[RegionRequest, list[InferenceResponse], PendingRequest]:
        """A request with inputs at these places, or in itself; all outputs go to `r` unless `outputs` are given."""
        tensors: list[InputTensor] = []
        for number, at in enumerate(inputs):
            name, shape = f"INPUT{number}", (rows, 16)
            if at is None:
                tensors.append(InputTensor(name, "FP32", shape, np.tile(ROW, (rows, 1))))
            else:
                tensors.append(RegionInput(name, "FP32", shape, RegionReference("r", at, rows * SIZE)))
        places = {"OUTPUT0": RegionReference("r", SUM, SIZE), "OUTPUT1": RegionReference("r", DIFFERENCE, SIZE)}
        request = RegionRequest.of(InferenceRequest("model", tensors), places if outputs is None else outputs)
        responses: list[InferenceResponse] = []
        pending = PendingRequest(request, responses.append)
        attach(pending, request, self.regions)
        return request, responses, pending

    def execute(self, *made: tuple[RegionRequest, list[InferenceResponse], PendingRequest]) -> list[OutputTensor]:
        """Validate and execute requests as the engine does it. Returns the outputs of the first response."""
        validator = RequestValidator(self.spec)
        requests = [request for request, _, _ in made]
        sizes = [validator.check(request)[0] for request in requests]
        self.cuda.calls.clear()
        done = self.instance.execute(requests, sizes)
        for (_, _, pending), outcome in zip(made, done.outputs, strict=True):
            assert isinstance(outcome, list) or not isinstance(outcome, Exception)
            pending.on_response(InferenceResponse("model", 1, outcome))  # type: ignore[arg-type]
        response = made[0][1][0]
        if response.error is not None:
            raise response.error
        return list(response.outputs)

    @property
    def copies(self) -> set[str]:
        return COPIES & set(self.cuda.calls)

    def at(self, offset: int) -> Array:
        return np.frombuffer(self.cuda.content(self.handle)[offset : offset + SIZE], np.float32)


@contextmanager
def with_onnxruntime(folder: Path, cuda: FakeCuda) -> Iterator[tuple[ModelSpec, BackendInstance]]:
    """The instance of a GPU, but on ONNX Runtime's device `cpu`, whose memory the driver has."""
    config = config_of(add_sub_config("FP32"))
    spec = spec_of(config)
    session = session_of(onnx_models.add_sub("FP32"))
    run = ValueRun(session, spec, "cpu", 0)
    runner = Runner(run=run, run_bound=run.bound)
    instance = model_of(lambda _: session, lambda *_: runner, config).instance(Placement("model_0", DeviceKind.GPU))
    try:
        yield spec, instance
    finally:
        instance.close()


@contextmanager
def with_tensorrt(folder: Path, cuda: FakeCuda) -> Iterator[tuple[ModelSpec, BackendInstance]]:
    backend, config, version = backend_on(cuda), trt_config(), write_plan(folder / "1", add_sub())
    backend.complete(version, config)
    with serving_version(backend, version, config, placement=ON_GPU) as served:
        yield served.spec, served.instance


@pytest.fixture(params=[with_onnxruntime, with_tensorrt])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    cuda = FakeCuda()
    handle = cuda.allocate(ROW.tobytes().ljust(256) + (ROW * 2).tobytes().ljust(256) + bytes(512))
    regions = Regions(open_driver=lambda: CudaDriver(cuda))
    regions.register_cuda("r", handle, 0, 1024)
    with request.param(tmp_path, cuda) as (spec, instance):
        yield Client(cuda, regions, spec, instance, handle)


def test_tensors_are_used_in_place(client: Client) -> None:
    outputs = client.execute(client.request())
    assert [(output.name, output.shape, output.nbytes) for output in outputs] == [
        ("OUTPUT0", (1, 16), 0),
        ("OUTPUT1", (1, 16), 0),
    ]
    np.testing.assert_array_equal(client.at(SUM), ROW * 3)
    np.testing.assert_array_equal(client.at(DIFFERENCE), -ROW)
    assert not client.copies
    # A run after it that binds nothing does not write there.
    client.execute(client.request((None, None), {}))
    np.testing.assert_array_equal(client.at(SUM), ROW * 3)


def test_tensors_of_the_gpu_and_of_the_request_can_be_mixed(client: Client) -> None:
    made = client.request((FIRST, None), {"OUTPUT1": RegionReference("r", DIFFERENCE, SIZE)})
    first, second = client.execute(made)
    np.testing.assert_array_equal(first.array, [ROW * 2])
    np.testing.assert_array_equal(client.at(DIFFERENCE), ROW * 0)
    assert (second.name, second.nbytes) == ("OUTPUT1", 0)
    assert not client.copies


def test_tensors_on_another_gpu_are_copied(client: Client) -> None:
    client.instance.placement = replace(client.instance.placement, device_id=1)
    client.execute(client.request())
    np.testing.assert_array_equal(client.at(SUM), ROW * 3)
    assert client.copies == COPIES
    client.instance.placement = replace(client.instance.placement, device_id=0)


def test_batches_of_several_requests_are_copied(client: Client) -> None:
    client.execute(client.request(), client.request((FIRST, FIRST), {}))
    np.testing.assert_array_equal(client.at(SUM), ROW * 3)
    assert client.copies == COPIES


def test_output_that_does_not_fit_is_not_written(client: Client) -> None:
    made = client.request(outputs={"OUTPUT0": RegionReference("r", SUM, SIZE - 4)})
    with pytest.raises(Exception, match=r"output 'OUTPUT0' \(60 bytes\) should be at least 64 bytes to hold the"):
        client.execute(made)
    np.testing.assert_array_equal(client.at(SUM), ROW * 0)


@pytest.mark.parametrize(
    ("change", "binds"),
    [
        ("", True),
        ("response_cache { enable: true }", False),
        ('output { name: "S" data_type: TYPE_STRING dims: 1 }', False),
        ('input { name: "R" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }', False),
        ('input { name: "R" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }', False),
        ('input { name: "R" data_type: TYPE_FP32 dims: 1 optional: true }', False),
        ('input { name: "R" data_type: TYPE_INT32 dims: 1 is_shape_tensor: true }', False),
        ("sequence_batching { }", False),
    ],
)
def test_converted_tensors_are_not_bound(change: str, binds: bool) -> None:
    config = config_of("max_batch_size: 4\n" + change)
    assert may_bind(spec_of(config), config) is binds
