"""The arguments of `forward`."""

from __future__ import annotations

import pytest

from trident.core.backends.pytorch.packages import Argument, Forward
from trident.core.errors import BackendFailed, ConfigInvalid

TENSOR = Argument("x", "TensorType", "Tensor")
STRINGS = Argument("s", "ListType", "List[str]")
DICTIONARY = Argument("d", "DictType", "Dict[str, Tensor]")


def test_tensors_and_lists_are_counted() -> None:
    forward = Forward.of([TENSOR, STRINGS], "model")
    assert (forward.arguments, forward.takes_dictionary) == (("x", "s"), False)
    forward.check_count(2, "model")
    text = "unable to load model 'model', configuration expects 3 inputs, model provides 2"
    with pytest.raises(ConfigInvalid, match=text):
        forward.check_count(3, "model")


def test_one_dictionary_takes_any_number() -> None:
    forward = Forward.of([DICTIONARY], "model")
    assert forward.takes_dictionary
    forward.check_count(7, "model")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([TENSOR, DICTIONARY], "Multiple inputs of kind DictType were detected."),
        ([TENSOR, Argument("n", "IntType", "int")], "An input of type 'int' was detected in the model."),
        ([Argument("x", "OptionalType", "Optional[Tensor]")], "An input of type 'Optional[Tensor]' was detected"),
    ],
)
def test_other_arguments_are_refused(arguments: list[Argument], text: str) -> None:
    with pytest.raises(BackendFailed) as raised:
        Forward.of(arguments, "model")
    assert raised.value.message.startswith(text)
