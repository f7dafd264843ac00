from __future__ import annotations

import sys
from typing import Any

import pytest

from trident.adapters.common.options import BadOption
from trident.app.commands.emulate_sagemaker import read_sagemaker_options
from trident.app.emulators.sagemaker.emulator import EmulatorOptions


def read(*arguments: str) -> EmulatorOptions:
    return read_sagemaker_options(arguments, {"HERE": "1"})


def options(**more: Any) -> EmulatorOptions:
    return EmulatorOptions(command=(sys.executable, "-P", "-m", "trident.app"), environment={"HERE": "1"}, **more)


def test_a_model_is_the_only_required_argument() -> None:
    assert read("sagemaker", "m.tar.gz") == options(model="m.tar.gz")


def test_all_options_are_read() -> None:
    found = read("sagemaker", "--multi-model", "--port=8199", "--env=A=1", "--env", "B=x=y", "--env=C=", "folder")
    variables = {"A": "1", "B": "x=y", "C": ""}
    assert found == options(model="folder", multi_model=True, api_port=8199, variables=variables)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["sagemaker"], "one model must be named"),
        (["sagemaker", "a", "b"], "one model must be named"),
        (["sagemaker", "a", "--port=x"], "--port"),
        (["sagemaker", "a", "--port=65536"], "--port"),
        (["sagemaker", "a", "--env=A"], "NAME=VALUE"),
        (["sagemaker", "a", "--env==1"], "NAME=VALUE"),
        (["sagemaker", "a", f"--env=A={'x' * 1025}"], "at most 1024 bytes"),
        (["sagemaker", "a", *(f"--env=A{n}=1" for n in range(101))], "at most 100 variables"),
        (["sagemaker", "a", *(f"--env=A{n}={'x' * 1000}" for n in range(40))], "32768 in all"),
        (["sagemaker", "a", "--multi-modal"], "did you mean --multi-model?"),
    ],
)
def test_invalid_options_are_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(BadOption) as refusal:
        read(*arguments)
    assert text in str(refusal.value)
