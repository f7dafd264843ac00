"""The method `forward` of a TorchScript module: what it takes, and whether that fits a configuration.

Source: docs/spec/framework-backends.md section 6.2, "Inputs of forward".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import BackendFailed, ConfigInvalid

_DICTIONARY = "DictType"
_PLAIN = ("TensorType", "ListType")


@dataclass(frozen=True, slots=True)
class Argument:
    """`kind` is PyTorch's name of the kind of type, `type_text` the type as PyTorch writes it."""

    name: str
    kind: str
    type_text: str


@dataclass(frozen=True, slots=True)
class Forward:
    """`takes_dictionary`: the one argument is a dictionary of tensors by their names. `arguments` are their names."""

    arguments: tuple[str, ...]
    takes_dictionary: bool

    @classmethod
    def of(cls, arguments: Sequence[Argument], model: str) -> Forward:
        """Raises BackendFailed, with Triton's text, for arguments that requests cannot give."""
        if len(arguments) == 1 and arguments[0].kind == _DICTIONARY:
            return cls((arguments[0].name,), True)
        for argument in arguments:
            if argument.kind == _DICTIONARY:
                raise BackendFailed(
                    "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
                    "supported.",
                    model=model,
                )
            if argument.kind not in _PLAIN:
                raise BackendFailed(
                    f"An input of type '{argument.type_text}' was detected in the model. Only a single input of type "
                    "Dict(str, Tensor) or input(s) of type Tensor are supported.",
                    hint=f"give the argument '{argument.name}' of forward the type Tensor, or List[str]",
                    model=model,
                )
        return cls(tuple(argument.name for argument in arguments), False)

    def check_count(self, count: int, model: str) -> None:
        """Raise ConfigInvalid unless a configuration with `count` inputs gives every argument."""
        if not self.takes_dictionary and count != len(self.arguments):
            raise ConfigInvalid(
                f"unable to load model '{model}', configuration expects {count} inputs, model provides "
                f"{len(self.arguments)}",
                hint=f"the arguments of forward are: {', '.join(self.arguments)}",
                model=model,
            )


def arguments_of(module: Any) -> list[Argument]:
    """The arguments of `forward` without `self`."""
    schema = module._c._get_method("forward").schema
    return [
        Argument(argument.name, argument.type.kind(), str(argument.type))
        for argument in schema.arguments
        if argument.name != "self"
    ]


def writes_in_place(module: Any) -> bool:
    """Whether the graph has an operator that changes a tensor, which may be an input or an output of an earlier run."""
    return _has_writer(module.inlined_graph)


def _has_writer(graph: Any) -> bool:
    for node in graph.nodes():
        # The names of such operators end with one underscore.
        if node.kind().endswith("_") and not node.kind().endswith("__"):
            return True
        if any(_has_writer(block) for block in node.blocks()):
            return True
    return False
