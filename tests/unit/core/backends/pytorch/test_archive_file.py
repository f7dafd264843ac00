"""What TorchScript archives say without PyTorch, which only writes them here."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from tests.unit.core.backends.pytorch.test_torch_script import (
    AddSub,
    ByName,
    Counter,
    Number,
    Shout,
    save,
    torch_config,
)
from trident.core.backends.pytorch.packages import arguments_in, arguments_of
from trident.core.backends.pytorch.torch_script import TorchScriptBackend
from trident.core.errors import BackendFailed, ConfigInvalid

KINDS = ("TensorType", "ListType", "DictType")


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.inner(rows)
        return answer


@pytest.mark.parametrize("module", [AddSub(), ByName(), Counter(), Number(), Shout(), Nested()])
def test_the_arguments_are_those_of_pytorch(tmp_path: Path, module: torch.nn.Module) -> None:
    save(module, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = arguments_of(torch.jit.load(tmp_path / "model.pt"))
    read = arguments_in(tmp_path / "model.pt")
    assert read is not None
    # A simple type has a kind of its own for PyTorch; it is refused under any name.
    known, expected = ([(each.name, each.kind in KINDS and each.kind) for each in side] for side in (read, own))
    assert known == expected


@pytest.mark.slow
def test_a_traced_module_says_it_as_well(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(Nested(), torch.zeros(1, 4)).save(str(tmp_path / "model.pt"))
    read = arguments_in(tmp_path / "model.pt")
    assert read is not None
    assert [(argument.name, argument.kind) for argument in read] == [("rows", "TensorType")]


def test_a_configuration_with_other_inputs_is_found_without_loading(tmp_path: Path) -> None:
    save(AddSub(), tmp_path)
    backend = TorchScriptBackend()
    backend.inspect(tmp_path, torch_config({"a": [1], "b": [1]}, {"y": [1]}))
    with pytest.raises(ConfigInvalid, match="configuration expects 1 inputs, model provides 2"):
        backend.inspect(tmp_path, torch_config({"a": [1]}, {"y": [1]}))
    save(Number(), tmp_path)
    with pytest.raises(BackendFailed, match="An input of type 'int' was detected in the model"):
        backend.inspect(tmp_path, torch_config({"n": [1]}, {"y": [1]}))
