"""What a TensorRT engine says of its tensors and profiles, as plain data.

Source: TensorRT's Python API reference, ICudaEngine; docs/spec/framework-backends.md section 6.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from core.inference.tensors import Shape

_DATATYPES = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "UINT8": "UINT8",
    "BOOL": "BOOL",
}


@dataclass(frozen=True, slots=True)
class ProfileRange:
    """The shapes that one profile takes for an input; for a shape tensor the values."""

    least: Shape
    best: Shape
    most: Shape


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """An input or output. `shape` has -1 for variable dimensions.

    `datatype` is a v2 name, "" for one that cannot be served; `type_name` is TensorRT's. `is_shape`: its values decide
    about shapes, or are shapes, and it lies in host memory. `profiles` are the ranges of an input, by profile.
    """

    name: str
    type_name: str
    shape: Shape
    is_shape: bool = False
    is_linear: bool = True
    profiles: tuple[ProfileRange, ...] = ()

    @property
    def datatype(self) -> str:
        return _DATATYPES.get(self.type_name, "")


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """The tensors in the engine's order; `profiles` is how many optimization profiles there are."""

    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    profiles: int

    def batch_limit(self, profile: int) -> int:
        """The largest batch that a profile takes: the least of the first dimensions; 0 if there is none."""
        firsts = []
        for tensor in self.inputs:
            most = tensor.profiles[profile].most
            if not most and not tensor.is_shape:
                return 0
            if most:
                firsts.append(most[0])
        return max(0, min(firsts, default=0))


def describe(engine: Any) -> EngineDescription:
    """The description of a deserialized `ICudaEngine`."""
    count = engine.num_optimization_profiles
    inputs: list[EngineTensor] = []
    outputs: list[EngineTensor] = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        is_input = engine.get_tensor_mode(name).name == "INPUT"
        is_shape = bool(engine.is_shape_inference_io(name))
        tensor = EngineTensor(
            name,
            engine.get_tensor_dtype(name).name,
            _shape(engine.get_tensor_shape(name)),
            is_shape,
            all(engine.get_tensor_format(name, profile).name == "LINEAR" for profile in range(count)),
            tuple(_range(engine, name, profile, is_shape) for profile in range(count)) if is_input else (),
        )
        (inputs if is_input else outputs).append(tensor)
    return EngineDescription(tuple(inputs), tuple(outputs), count)


def _range(engine: Any, name: str, profile: int, is_shape: bool) -> ProfileRange:
    if is_shape:
        # The keywords of this method are in the wrong order in TensorRT: the first argument is the profile.
        values = engine.get_tensor_profile_values(profile, name)
    else:
        values = engine.get_tensor_profile_shape(name, profile)
    least, best, most = [_shape(each) for each in values] or [(), (), ()]
    return ProfileRange(least, best, most)


def _shape(dims: Iterable[int]) -> Shape:
    return tuple(int(dim) for dim in dims)
