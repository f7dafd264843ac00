"""A golden request: a request, the response that a model must give to it, and how close that must be."""

from __future__ import annotations

from dataclasses import dataclass

from core.config.golden.tensor import GoldenTensor
from core.config.model_spec import ModelSpec
from core.inference.request import InferenceRequest, InputTensor


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed difference of a value: |value - expected| <= absolute + relative * |expected|."""

    absolute: float = 0.0
    relative: float = 0.0


EXACT = Tolerance()
FLOATING = Tolerance(absolute=1e-5, relative=1e-4)


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """An output that the response must have."""

    tensor: GoldenTensor
    tolerance: Tolerance


@dataclass(frozen=True, slots=True)
class GoldenRequest:
    """The content of the file `name`. `outputs`: the requested ones, empty for all; `expected`: the compared ones."""

    name: str
    id: str
    inputs: tuple[GoldenTensor, ...]
    outputs: tuple[str, ...]
    expected: tuple[ExpectedOutput, ...]

    def inference_request(self, spec: ModelSpec) -> InferenceRequest:
        """A new request for the version that `spec` describes, not yet validated."""
        inputs = [
            InputTensor(tensor.name, tensor.datatype.name, tensor.array.shape, tensor.array) for tensor in self.inputs
        ]
        return InferenceRequest(
            spec.name, inputs, model_version=spec.version, id=self.id or self.name, outputs=self.outputs
        )
