"""What the server and its models are, as the metadata calls of every protocol report it.

Source: docs/spec/http.md section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.config.model_spec import InputSpec, ModelSpec, OutputSpec
from core.inference.tensors import Shape

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""The protocol extensions that this server has, in Triton's order: clients look for them before they use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetadata:
    """`name` is the value of --id, `version` the version of this server."""

    name: str
    version: str
    extensions: tuple[str, ...] = EXTENSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMetadata:
    """An input or an output. `shape` begins with -1 if the model has a batch dimension."""

    name: str
    datatype: str
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """`versions` are those that the question covers and that are ready, ascending. `platform` is the backend's name
    for a model whose configuration gives no platform."""

    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def model_metadata(spec: ModelSpec, versions: Sequence[int]) -> ModelMetadata:
    """The metadata of the version that `spec` describes."""
    return ModelMetadata(
        name=spec.name,
        versions=tuple(versions),
        platform=spec.platform or spec.backend,
        inputs=tuple(_tensor(tensor, spec) for tensor in spec.inputs.values()),
        outputs=tuple(_tensor(tensor, spec) for tensor in spec.outputs.values()),
    )


def _tensor(tensor: InputSpec | OutputSpec, spec: ModelSpec) -> TensorMetadata:
    batch = (-1,) if spec.max_batch_size > 0 else ()
    return TensorMetadata(name=tensor.name, datatype=tensor.datatype.name, shape=(*batch, *tensor.dims))
