from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import main
from app.emulate_command import EmulateOptions, read_emulate_options
from app.options import BadOption


def test_a_model_is_enough() -> None:
    assert read_emulate_options(["sagemaker", "m.tar.gz"]) == EmulateOptions(model=Path("m.tar.gz"))


def test_everything_that_can_be_given() -> None:
    arguments = ["sagemaker", "--multi-model", "--port=8199", "--env=A=1", "--env", "B=x=y", "--env=C=", "folder"]
    assert read_emulate_options(arguments) == EmulateOptions(
        model=Path("folder"), multi_model=True, port=8199, variables={"A": "1", "B": "x=y", "C": ""}
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "a platform must be named"),
        (["vertex", "m"], "a platform must be named"),
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
def test_what_cannot_be_is_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(BadOption) as refusal:
        read_emulate_options(arguments)
    assert text in str(refusal.value)


def test_the_command_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--help"]) == 0
    assert "--multi-model" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--multi-model"]])
def test_a_model_that_is_not_there_ends_before_anything_starts(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", "sagemaker", *more, str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err
