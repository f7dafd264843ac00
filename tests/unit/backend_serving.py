"""Loading a model version as a server would, and executing requests on it, without a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf import text_format

from trident.core.backends.backend import Backend, BackendInstance, BackendModel, Execution, LoadContext
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.request_check import RequestValidator
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.inference.pending_request import DeferredOutcome
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import BY_NAME, Array

ON_CPU = Placement("model_0", DeviceKind.CPU)


def config_of(text: str, name: str = "model", backend: str = "onnxruntime") -> ModelConfig:
    config = text_format.Parse(text, ModelConfig())
    config.name = config.name or name
    config.backend = config.backend or backend
    return config


def spec_of(config: ModelConfig) -> ModelSpec:
    return resolve_model_spec(config, 1, {})


def parameter(name: str, value: object) -> str:
    """A parameter of a configuration."""
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def tensor_text(side: str, name: str, datatype: str, dims: Sequence[int], more: str = "") -> str:
    data_type = BY_NAME[datatype].config_name
    return f'{side} {{ name: "{name}" data_type: {data_type} dims: {list(dims)} {more} }}\n'


@dataclass(frozen=True, slots=True)
class Serving:
    """A loaded model with one instance. Requests are validated as the engine does it."""

    spec: ModelSpec
    model: BackendModel
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
            assert not isinstance(outcome, DeferredOutcome), "a response that is sent later has no place here"
            answers.append({checked(tensor).name: tensor.array for tensor in outcome})
        return answers

    def infer(self, arrays: dict[str, Array], outputs: tuple[str, ...] = ()) -> dict[str, Array]:
        return self.execute([self.request(arrays, outputs)])[0]


def checked(tensor: OutputTensor) -> OutputTensor:
    """Assert that each output is contiguous and has its declared shape and its datatype's numpy type."""
    assert tensor.array.flags.c_contiguous
    assert tensor.array.shape == tensor.shape
    return tensor


@contextmanager
def serving_version(
    backend: Backend, version: Path, config: ModelConfig, *, placement: Placement = ON_CPU, threads: int = 1
) -> Iterator[Serving]:
    """The model in the directory `version`, loaded by `backend` with `config`; everything is closed at the end."""
    spec = spec_of(config)
    context = LoadContext(path=version, config=config, spec=spec, placements=(placement,), threads=threads)
    loaded = backend.load(context)
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
