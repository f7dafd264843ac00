"""TorchScript archives: the arguments of `forward`, and which argument or result a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.backend_serving import config_of
from tests.unit.core.backends.pytorch.test_torch_script import (
    AddSub,
    Number,
    save,
    torch_config,
)
from trident.core.backends.pytorch.backend import PyTorchBackend
from trident.core.backends.pytorch.torch_script import (
    Argument,
    Forward,
    check_controls,
    input_positions,
)
from trident.core.errors import BackendFailed, ConfigInvalid


def test_a_configuration_with_other_inputs_is_found(tmp_path: Path) -> None:
    save(AddSub(), tmp_path)
    backend = PyTorchBackend({})
    backend.inspect(tmp_path, torch_config({"a": [1], "b": [1]}, {"y": [1]}))
    with pytest.raises(ConfigInvalid, match="configuration expects 1 inputs, model provides 2"):
        backend.inspect(tmp_path, torch_config({"a": [1]}, {"y": [1]}))
    save(Number(), tmp_path)
    with pytest.raises(BackendFailed, match="An input of type 'int' was detected in the model"):
        backend.inspect(tmp_path, torch_config({"n": [1]}, {"y": [1]}))


# --- arguments


TENSOR = Argument("x", "TensorType", "Tensor")
DICTIONARY = Argument("d", "DictType", "Dict[str, Tensor]")


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


# --- names


@pytest.mark.parametrize(
    ("names", "arguments", "positions"),
    [
        (["b", "a"], ["a", "b"], {"b": 1, "a": 0}),
        (["INPUT__1", "INPUT__0"], ["a", "b"], {"INPUT__1": 1, "INPUT__0": 0}),
        (["x__1", "y__0"], ["a", "b"], {"x__1": 1, "y__0": 0}),
        (["second", "first"], ["a", "b"], {"second": 0, "first": 1}),
        # Mixed names mean the order of the configuration.
        (["b", "INPUT__0"], ["a", "b"], {"b": 0, "INPUT__0": 1}),
        (["INPUT__1", "first"], ["a", "b"], {"INPUT__1": 0, "first": 1}),
        # Digits must follow the first two underscores, and nothing must follow them.
        (["IN__x__1", "IN__0"], ["a", "b"], {"IN__x__1": 0, "IN__0": 1}),
        (["IN__1a", "IN__0"], ["a", "b"], {"IN__1a": 0, "IN__0": 1}),
        (["__1", "__0"], ["a", "b"], {"__1": 1, "__0": 0}),
    ],
)
def test_positions_of_inputs(names: list[str], arguments: list[str], positions: dict[str, int]) -> None:
    assert input_positions(names, arguments, "model") == positions


def test_names_without_a_numeric_index_log_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    input_positions(["IN__0", "IN__x"], ["a", "b"], "model")
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "input 'IN__x' or previous input(s) are neither an input argument to the model 'model' nor do they follow the "
        "<name>__<index> naming convention. Falling back"
    )


@pytest.mark.parametrize(
    ("batching", "text"),
    [
        ("control_input { name: 'START' }", "input 'START' does not follow <name>__<index> naming convention."),
        ("state { input_name: 'IN' output_name: 'OUT__1' }", "state 'IN' does not follow the <name>__<index> naming"),
        ("state { input_name: 'IN__1' output_name: 'OUT' }", "state 'OUT' does not follow the <name>__<index> naming"),
    ],
)
def test_controls_and_states_need_an_index(batching: str, text: str) -> None:
    config = config_of(
        f"input {{ name: 'A__0' }} output {{ name: 'B__0' }} sequence_batching {{ {batching} }}", backend="pytorch"
    )
    with pytest.raises(BackendFailed) as raised:
        check_controls(config)
    assert text in raised.value.message


def test_states_need_an_index_on_every_tensor() -> None:
    batching = "sequence_batching { state { input_name: 'IN__1' output_name: 'OUT__1' } }"
    config = config_of("input { name: 'A' } output { name: 'B__0' } " + batching, backend="pytorch")
    with pytest.raises(BackendFailed, match="not all inputs and outputs follow the <name>__<index> naming convention"):
        check_controls(config)
