"""The inputs of one instance of a model, and whether instances are stacked into a batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from core.config.json_fields import nearest
from core.config.model_spec import InputSpec, ModelSpec
from core.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSignature:
    """`inputs` have the dims of one instance. `stacked`: instances are a batch; otherwise each is a request."""

    inputs: dict[str, InputSpec]
    stacked: bool


def instance_signature(spec: ModelSpec, rank: int | None) -> InstanceSignature:
    """The signature for instances whose first input has `rank` dimensions; None for flat rows.

    A model with `max_batch_size` 0 may still have a batch dimension: the first dimension of every input and output, if
    all are variable. Instances without that dimension are rows of a batch. Instances with it are whole tensors.
    """
    if spec.max_batch_size > 0:
        return InstanceSignature(inputs=spec.inputs, stacked=True)
    first = next(iter(spec.inputs.values()))
    if _has_batch_dimension(spec) and rank in (None, len(first.dims) - 1):
        rows = {name: replace(i, dims=i.dims[1:], model_dims=None) for name, i in spec.inputs.items()}
        return InstanceSignature(inputs=rows, stacked=True)
    return InstanceSignature(inputs=spec.inputs, stacked=False)


def single_input(spec: ModelSpec, what: str) -> InputSpec:
    """The only input of the model. Raises InvalidRequest whose text says that `what` needs such a model."""
    if len(spec.inputs) != 1:
        raise InvalidRequest(f"{what} needs a model with one input, '{spec.name}' has {_listed(spec.inputs)}")
    return next(iter(spec.inputs.values()))


def check_names(given: Iterable[str], spec: ModelSpec, location: str) -> None:
    """Raises InvalidRequest for a name that is not an input of the model, and for a required input without a value."""
    names = dict.fromkeys(given)
    for name in names:
        if name not in spec.inputs:
            raise InvalidRequest(
                f"{location}: '{name[:60]}' is not an input of model '{spec.name}', "
                f"whose inputs are {_listed(spec.inputs)}",
                hint=nearest(name[:60], spec.inputs),
            )
    for name, expected in spec.inputs.items():
        if name not in names and not expected.optional:
            raise InvalidRequest(
                f"{location}: input '{name}' is missing; the inputs of model '{spec.name}' are {_listed(spec.inputs)}"
            )


def _has_batch_dimension(spec: ModelSpec) -> bool:
    inputs_have = all(len(i.dims) > 1 and i.dims[0] == -1 for i in spec.inputs.values())
    return inputs_have and all(o.dims[:1] == (-1,) for o in spec.outputs.values())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
