"""Loading ONNX models as a server would, and executing requests on them, without a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf import text_format

from core.backends.base import BackendInstance, Execution, LoadContext
from core.backends.devices.cuda import gpu_ids
from core.backends.onnxruntime.backend import OnnxRuntimeBackend
from core.backends.onnxruntime.model import OnnxModel
from core.config.model_spec import ModelSpec
from core.config.placement import DeviceKind, Placement
from core.config.request_validator import RequestValidator
from core.config.resolve import resolve_model_spec
from core.config.schema import ModelConfig
from core.inference.request import InferenceRequest, InputTensor
from core.inference.response import OutputTensor
from core.inference.tensors import BY_NAME, Array
from tests.unit.onnx_models import write_version

ON_CPU = Placement("model_0", DeviceKind.CPU)


def config_of(text: str, name: str = "model") -> ModelConfig:
    config = text_format.Parse(text, ModelConfig())
    config.name = config.name or name
    config.backend = "onnxruntime"
    return config


def spec_of(config: ModelConfig) -> ModelSpec:
    return resolve_model_spec(config, 1, {})


def tensor_text(side: str, name: str, datatype: str, dims: Sequence[int], more: str = "") -> str:
    data_type = BY_NAME[datatype].config_name
    return f'{side} {{ name: "{name}" data_type: {data_type} dims: {list(dims)} {more} }}\n'


def identity_config(datatype: str, dims: Sequence[int], max_batch_size: int = 8, more: str = "") -> str:
    """For `onnx_models.identity` with one input."""
    return (
        f"max_batch_size: {max_batch_size}\n"
        + tensor_text("input", "INPUT0", datatype, dims, more)
        + tensor_text("output", "OUTPUT0", datatype, dims, more)
    )


def add_sub_config(datatype: str = "INT32", max_batch_size: int = 8, dims: Sequence[int] = (16,)) -> str:
    sides = [("input", "INPUT"), ("output", "OUTPUT")]
    tensors = [tensor_text(side, f"{name}{n}", datatype, dims) for side, name in sides for n in range(2)]
    return f"max_batch_size: {max_batch_size}\n" + "".join(tensors)


@dataclass(frozen=True, slots=True)
class Serving:
    """A loaded model with one instance. Requests are validated as the engine does it."""

    spec: ModelSpec
    model: OnnxModel
    instance: BackendInstance

    def request(self, arrays: dict[str, Array], outputs: tuple[str, ...] = ()) -> InferenceRequest:
        inputs = [
            InputTensor(name, self.spec.inputs[name].datatype.name, array.shape, array)
            for name, array in arrays.items()
        ]
        return InferenceRequest(self.spec.name, inputs, outputs=outputs)

    def run(self, requests: Sequence[InferenceRequest], instance: BackendInstance | None = None) -> Execution:
        """Validate `requests` and execute them as one batch, on another `instance` if one is given."""
        validator = RequestValidator(self.spec)
        return (instance or self.instance).execute(requests, [validator.check(request)[0] for request in requests])

    def execute(self, requests: Sequence[InferenceRequest]) -> list[dict[str, Array]]:
        """The output arrays of each request by name, in the order of the outcome."""
        answers: list[dict[str, Array]] = []
        for outcome in self.run(requests).outputs:
            if isinstance(outcome, Exception):
                raise outcome
            answers.append({checked(tensor).name: tensor.array for tensor in outcome})
        return answers

    def infer(self, arrays: dict[str, Array], outputs: tuple[str, ...] = ()) -> dict[str, Array]:
        return self.execute([self.request(arrays, outputs)])[0]


def checked(tensor: OutputTensor) -> OutputTensor:
    """What every output must be: contiguous, in the shape that it says, of its datatype's numpy type."""
    assert tensor.array.flags.c_contiguous
    assert tensor.array.shape == tensor.shape
    return tensor


@contextmanager
def serving(
    model: onnx.ModelProto,
    config_text: str,
    folder: Path,
    *,
    placement: Placement = ON_CPU,
    threads: int = 1,
    settings: dict[str, str] | None = None,
) -> Iterator[Serving]:
    """`model` in a model repository at `folder`, loaded with `config_text`; everything is closed at the end."""
    config = config_of(config_text)
    version = write_version(model, folder, config.name)
    spec = spec_of(config)
    context = LoadContext(path=version, config=config, spec=spec, placements=(placement,), threads=threads)
    loaded = OnnxRuntimeBackend(settings or {}).load(context)
    instance = loaded.instance(placement)
    try:
        yield Serving(spec, loaded, instance)
    finally:
        instance.close()
        loaded.close()


def strings(*elements: bytes, shape: tuple[int, ...] = ()) -> Array:
    """A BYTES array; of shape [1, n] if none is given."""
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape or (1, len(elements)))


def usable_gpus() -> tuple[int, ...]:
    """The GPUs that this ONNX Runtime can use."""
    return gpu_ids() if OnnxRuntimeBackend().supports_gpus else ()
