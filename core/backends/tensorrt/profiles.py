"""Decides which optimization profile runs a batch.

Source: docs/spec/framework-backends.md section 6.5; docs/spec/model-config.md section 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.backends.tensorrt.engine import EngineDescription, EngineTensor
from core.config.schema import ModelConfig
from core.errors import BackendFailed, ConfigInvalid
from core.inference.tensors import Shape


def profile_indices(config: ModelConfig, names: Sequence[str], available: int) -> tuple[int, ...]:
    """The profiles that the `profile` field of an instance group names; the first without any.

    Raises BackendFailed and ConfigInvalid with Triton's texts.
    """
    found: dict[int, None] = {}
    for name in names:
        try:
            index = int(name)
        except ValueError:
            raise ConfigInvalid(f"unable to parse '{name}': stoi", hint="profiles have numbers, from 0 on") from None
        if not 0 <= index < available:
            raise BackendFailed(
                f"unable to autofill for '{config.name}', configuration specified invalid profile {name} . Number of "
                f"profiles supported by TensorRT engine: {available}",
                hint=f"instance_group.profile: 0 to {available - 1}",
                model=config.name,
            )
        found[index] = None
    return tuple(found) or (0,)


def choose_profile(
    engine: EngineDescription, profiles: Sequence[int], given: Mapping[str, Shape], instance: str
) -> int:
    """The profile of `profiles` that takes the batch and whose best shapes are nearest to it.

    `given` are the shapes of the inputs, and the values of shape tensors. Raises BackendFailed with Triton's text.
    """
    fitting = [(_distance(engine, index, given), index) for index in profiles if not _misfit(engine, index, given)]
    if fitting:
        return min(fitting)[1]
    raise BackendFailed(
        _misfit(engine, profiles[0], given, instance),
        hint="the plan was built with these limits (trtexec --minShapes --maxShapes)",
    )


def dims_problem(tensor: EngineTensor, profile: int, shape: Shape, first: int = 0) -> str:
    """Why the dimensions of `shape` from `first` on are outside of a profile, as Triton says it; "" if none is."""
    limits = tensor.profiles[profile]
    if len(shape) != len(limits.most):
        return f"model expected {len(limits.most)} dimensions but received {len(shape)} dimensions"
    for at, (least, dim, most) in enumerate(zip(limits.least, shape, limits.most, strict=True)):
        if at >= first and dim != -1 and not least <= dim <= most:
            return f"model expected the shape of dimension {at} to be between {least} and {most} but received {dim}"
    return ""


def _values_problem(tensor: EngineTensor, profile: int, values: Shape) -> str:
    limits = tensor.profiles[profile]
    if len(values) != len(limits.most):
        return f"mismatch between the number of shape values. Expecting {len(limits.most)}. Got {len(values)}"
    for at, (least, value, most) in enumerate(zip(limits.least, values, limits.most, strict=True)):
        if not least <= value <= most:
            return f"The shape value at index {at} is expected to be in range from {least} to {most}, Got: {value}"
    return ""


def _misfit(engine: EngineDescription, profile: int, given: Mapping[str, Shape], instance: str = "") -> str:
    """Why a profile does not take the batch; "" if it does."""
    for tensor in engine.inputs:
        value = given[tensor.name]
        if tensor.is_shape:
            if problem := _values_problem(tensor, profile, value):
                return problem
        elif problem := dims_problem(tensor, profile, value):
            return f"request specifies invalid shape for input '{tensor.name}' for {instance}. Error details: {problem}"
    return ""


def _distance(engine: EngineDescription, profile: int, given: Mapping[str, Shape]) -> int:
    return sum(
        abs(value - best)
        for tensor in engine.inputs
        for value, best in zip(given[tensor.name], tensor.profiles[profile].best, strict=False)
    )
