from __future__ import annotations

import pytest

from app.commands.completion.command import completion
from app.commands.completion.subcommands import SHELLS
from app.settings.option import BadOption


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_names_its_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert completion([shell]) == 0
    assert f"# {shell} completion for trident" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["tcsh"], ["bash", "zsh"]])
def test_a_shell_must_be_named(arguments: list[str]) -> None:
    with pytest.raises(BadOption, match=r"trident completion bash\|zsh\|fish"):
        completion(arguments)
