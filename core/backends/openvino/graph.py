"""The graph of an OpenVINO model, made to fit its configuration before it is compiled.

Source: docs/spec/framework-backends.md section 6.6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import openvino

from core.backends.openvino.tensors import DATATYPES, TYPES, as_converted, begins_with_batch, tensor_name
from core.config.problem import InvalidModelConfig, Problem
from core.config.schema import ModelConfig, ModelInput, ModelOutput, datatype_of
from core.config.signature import ModelSignature, TensorSignature
from core.config.validation.signature import validate_against_signature
from core.inference.tensors import Shape


def signature_of(model: Any) -> ModelSignature:
    """The tensors of a graph. It can batch if the layout of each says that its first dimension is the batch."""
    return ModelSignature(
        tuple(_tensor(port) for port in model.inputs),
        tuple(_tensor(port) for port in model.outputs),
        can_batch=all(begins_with_batch(str(port.get_node().layout)) for port in [*model.inputs, *model.outputs]),
    )


def name_of(port: Any) -> str:
    """The name of an input or output."""
    return tensor_name(str(port.get_node().friendly_name), port.names)


@dataclass(frozen=True, slots=True)
class FittedGraph:
    """A graph that is ready to be compiled. `inputs` and `outputs` are the names of its ports, in their order.

    `signature` is what it then has, with the datatypes of the configuration. `fixed_batch` is the number of rows that
    it takes at a time, if its operators allow no other; otherwise 0.
    """

    model: Any
    signature: ModelSignature
    inputs: Sequence[str]
    outputs: Sequence[str]
    fixed_batch: int = 0


def fit(read: Callable[[], Any], config: ModelConfig, *, reshapes: bool) -> FittedGraph:
    """The graph that `read` reads, with the batch, the dimensions and the datatypes of `config`.

    Raises InvalidModelConfig for what cannot be made to fit, with Triton's texts. `reshapes`: inputs get the dimensions
    of `config`.
    """
    model, fixed_batch = read(), 0
    if config.max_batch_size > 0 and not _takes_batches(model, config, -1, reshapes):
        # OpenVINO does not undo what it began to change.
        model, fixed_batch = read(), config.max_batch_size
        if not _takes_batches(model, config, fixed_batch, reshapes):
            raise InvalidModelConfig(
                [
                    Problem(
                        "max_batch_size",
                        f"the operators of model '{config.name}' allow no other first dimension than the model's own",
                        "set max_batch_size to 0",
                    )
                ],
                model=config.name,
            )
    elif config.max_batch_size == 0 and reshapes:
        _reshape(model, config, None)
    signature = signature_of(model)
    fitted = as_converted(config, signature, any_batch=bool(fixed_batch))
    problems = validate_against_signature(config, fitted, config.name)
    if problems:
        raise InvalidModelConfig(problems, model=config.name)
    inputs = [tensor.name for tensor in signature.inputs]
    outputs = [tensor.name for tensor in signature.outputs]
    return FittedGraph(_converted(model, config, inputs, outputs), fitted, inputs, outputs, fixed_batch)


def _takes_batches(model: Any, config: ModelConfig, size: int, reshapes: bool) -> bool:
    """Whether the graph, changed in place, takes `size` rows and gives as many; -1 rows are any number."""
    try:
        _reshape(model, config, size, dims_too=reshapes)
    except RuntimeError:
        return False
    return all(tensor.shape[:1] == (size,) for tensor in signature_of(model).outputs)


def _reshape(model: Any, config: ModelConfig, size: int | None, dims_too: bool = True) -> None:
    """Give the inputs a batch of `size`, and with `dims_too` the dimensions of `config`, in place."""
    wanted = {
        entry.name: tuple(entry.reshape.shape) if entry.HasField("reshape") else tuple(entry.dims)
        for entry in config.input
    }
    first = () if size is None else (size,)
    shapes: dict[int, Any] = {}
    for index, port in enumerate(model.inputs):
        own = _shape(port)[len(first) :]
        dims = wanted.get(name_of(port), own) if dims_too else own
        shapes[index] = openvino.PartialShape([*first, *dims])
    model.reshape(shapes)


def _converted(model: Any, config: ModelConfig, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """The graph with tensors of the datatypes of `config` at its ends."""
    ends = openvino.preprocess.PrePostProcessor(model)
    for entry in config.input:
        ends.input(inputs.index(entry.name)).tensor().set_element_type(_type_of(entry))
    for entry in config.output:
        ends.output(outputs.index(entry.name)).tensor().set_element_type(_type_of(entry))
    return ends.build()


def _type_of(entry: ModelInput | ModelOutput) -> Any:
    row = datatype_of(entry.data_type)
    return getattr(openvino.Type, TYPES[row.name if row else ""])


def _tensor(port: Any) -> TensorSignature:
    return TensorSignature(name_of(port), DATATYPES.get(_type_name(port), ""), _shape(port))


def _type_name(port: Any) -> str:
    return str(port.get_element_type().get_type_name())


def _shape(port: Any) -> Shape:
    """The dimensions of a port; a variable one, with bounds or without, is -1."""
    return tuple(-1 if dim.is_dynamic else dim.get_length() for dim in port.partial_shape)
