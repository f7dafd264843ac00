from __future__ import annotations

from pathlib import Path

import pytest

from trident.adapters.common.options import BadOption
from trident.app.cli import main
from trident.app.commands.emulate import platform_of


@pytest.mark.parametrize(
    ("arguments", "platform"),
    [
        (["sagemaker", "m"], "sagemaker"),
        (["vertex", "sagemaker"], "vertex"),
        (["--port=1", "--env", "A=1", "vertex", "m", "--", "x"], "vertex"),
    ],
)
def test_the_platform_is_the_first_platform_name(arguments: list[str], platform: str) -> None:
    assert platform_of(arguments) == platform


@pytest.mark.parametrize("arguments", [[], ["azure", "m"], ["--port=1"]])
def test_a_platform_must_be_named(arguments: list[str]) -> None:
    with pytest.raises(BadOption, match="a platform must be named: trident emulate sagemaker MODEL or"):
        platform_of(arguments)


def test_the_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--multi-model" in text
    assert "--endpoint-type" in text


@pytest.mark.parametrize("more", [["sagemaker"], ["sagemaker", "--multi-model"], ["vertex"]])
def test_a_missing_model_ends_the_command_before_anything_starts(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *more, str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err
