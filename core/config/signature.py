"""What a model's graph takes and gives, as the backend reads it from the model file."""

from __future__ import annotations

from dataclasses import dataclass

from core.inference.tensors import Shape


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """An input or output as the graph declares it. `datatype` is a v2 name, or "" for a type that cannot be served.

    Dimensions that are not fixed are -1.
    """

    name: str
    datatype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """What a graph takes and gives. `optional_inputs` are initializers that a request may override."""

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    optional_inputs: tuple[TensorSignature, ...] = ()
