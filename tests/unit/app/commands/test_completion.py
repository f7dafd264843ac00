from __future__ import annotations

import pytest

from trident.adapters.common.options import BadOption
from trident.app.cli import COMMANDS
from trident.app.commands import completion
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS


def test_every_command_and_option_of_serve_is_completed() -> None:
    assert {each.name.partition(" ")[0] for each in completion.COMMANDS} == {"", *COMMANDS}
    (serve,) = (each for each in completion.COMMANDS if each.name == "serve")
    expected = {each.flag for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS) if each.flag}
    assert {each.flag for each in serve.options} == expected | {"help"}


def test_the_outline_of_an_option_is_its_first_sentence() -> None:
    outline = completion.outline
    assert outline(SERVER_OPTIONS["repository_poll_secs"]) == "Seconds between two polls"
    assert all(outline(each) for each in UNUSED_OPTIONS)


@pytest.mark.parametrize("arguments", [[], ["tcsh"], ["bash", "zsh"]])
def test_a_shell_must_be_named(arguments: list[str]) -> None:
    with pytest.raises(BadOption, match=r"trident completion bash\|zsh\|fish"):
        completion.completion(arguments)
