"""Plans of the fake TensorRT, and the backend on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.unit.backend_serving import config_of
from tests.unit.core.backends.tensorrt import fake_tensorrt
from tests.unit.core.cuda.fake_cuda import FakeCuda
from trident.core.backends.tensorrt.backend import TensorRtBackend
from trident.core.backends.tensorrt.engine import TensorRtPackage
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.schema import ModelConfig
from trident.core.cuda import CudaDriver

ON_GPU = Placement("model_0", DeviceKind.GPU)

Profile = tuple[Sequence[int], Sequence[int], Sequence[int]]
EIGHT: Profile = ((1, 16), (4, 16), (8, 16))


def tensor(name: str, shape: Sequence[int], *profiles: Profile, kind: str = "FLOAT", **more: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name, "type": kind, "shape": list(shape), **more}
    if profiles:
        described["profiles"] = [[list(each) for each in profile] for profile in profiles]
    return described


def add_sub(shape: Sequence[int] = (-1, 16), *profiles: Profile, kind: str = "FLOAT", **more: Any) -> bytes:
    ranges = profiles or ((EIGHT,) if -1 in shape else ())
    inputs = [tensor(f"INPUT{number}", shape, *ranges, kind=kind) for number in range(2)]
    outputs = [tensor(f"OUTPUT{number}", shape, kind=kind) for number in range(2)]
    return fake_tensorrt.plan(inputs, outputs, "add_sub", **more)


def identity(kind: str) -> bytes:
    return fake_tensorrt.plan(
        [tensor("INPUT0", (-1, 16), EIGHT, kind=kind)], [tensor("OUTPUT0", (-1, 16), kind=kind)], "identity"
    )


def ragged() -> bytes:
    """An identity of one dimension, with an input for how many elements each request has."""
    elements = tensor("INPUT0", (-1,), ((1,), (16,), (64,)))
    counts = tensor("COUNTS", (-1,), ((1,), (4,), (8,)))
    return fake_tensorrt.plan([elements, counts], [tensor("OUTPUT0", (-1,))], "identity")


def nonzero() -> bytes:
    return fake_tensorrt.plan(
        [tensor("INPUT0", (-1,), ((1,), (8,), (64,)))], [tensor("OUTPUT0", (-1, 1), kind="INT64")], "nonzero"
    )


def fill() -> bytes:
    """With batching the shape has the batch in front: SHAPE has one value more than a client sends."""
    limits = ((1, 1, 1), (2, 4, 4), (8, 32, 32))
    return fake_tensorrt.plan(
        [
            tensor("SHAPE", (3,), limits, kind="INT32", is_shape=True),
            tensor("VALUE", (-1, 1), ((1, 1), (2, 1), (8, 1))),
        ],
        [tensor("FILLED", (-1, -1, -1)), tensor("FILLED_SHAPE", (3,), kind="INT64", is_shape=True)],
        "fill",
    )


def backend_on(
    cuda: FakeCuda | None, settings: Mapping[str, str] | None = None, module: Any = fake_tensorrt
) -> TensorRtBackend:
    """`cuda` is None on a machine without a driver."""
    return TensorRtBackend(
        settings or {},
        open_driver=lambda: None if cuda is None else CudaDriver(cuda),
        import_package=lambda read: TensorRtPackage(module, read),
        capability_of=lambda device_id: "9.0",
    )


def trt_config(text: str = "", group: str = "") -> ModelConfig:
    groups = f'instance_group {{ name: "model" kind: KIND_GPU count: 1 gpus: 0 {group} }}\n'
    return config_of(groups + text, backend="tensorrt")


def write_plan(folder: Path, content: bytes, name: str = "model.plan") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder
