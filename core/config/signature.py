"""The inputs and outputs of a model's graph, as the backend reads them from the model file."""

from __future__ import annotations

from dataclasses import dataclass

from core.inference.tensors import Shape


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """An input or output as the graph declares it. Variable dimensions are -1.

    `datatype` is a v2 name, or "" for a type that cannot be served.
    """

    name: str
    datatype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class BatchingFault:
    """What a trial saw that forbids batching, as a clause, and what to do about the model to batch it."""

    seen: str
    cure: str


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """The tensors of a graph. `optional_inputs` are initializers that a request may override.

    `can_batch` is what the model itself says about its first dimensions; None if only their sizes say it. It, and the
    sizes, may be wrong: `batching_fault` is what running the graph has shown.
    """

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    optional_inputs: tuple[TensorSignature, ...] = ()
    can_batch: bool | None = None
    batching_fault: BatchingFault | None = None
