from __future__ import annotations

from app.cli import COMMANDS
from app.commands.completion.subcommands import SUBCOMMANDS, first_words, outline
from app.settings.server import SERVER_OPTIONS
from app.settings.unused import UNUSED_OPTIONS


def test_every_command_is_described() -> None:
    assert {each.word for each in first_words()} == set(COMMANDS)


def test_every_option_of_a_server_is_one_of_serve() -> None:
    serve = next(each for each in SUBCOMMANDS if each.name == "serve")
    expected = {f"--{name}" for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS) if each.flag for name in each.names}
    assert {flag for flag, _ in serve.flags()} == expected | {"--help"}


def test_the_outline_of_an_option_is_its_first_sentence() -> None:
    assert outline(SERVER_OPTIONS["repository_poll_secs"]) == "Seconds between two polls of the repositories"
    assert all(outline(each) for each in UNUSED_OPTIONS)
