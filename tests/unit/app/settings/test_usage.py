from __future__ import annotations

from app.settings.server import SERVER_OPTIONS
from app.settings.unused import UNUSED_OPTIONS
from app.settings.usage import EMULATE_USAGE, USAGE, serve_usage


def test_every_option_is_in_the_help_text() -> None:
    text = serve_usage()
    words = set(text.replace("=", " ").replace(",", " ").split())
    for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS):
        for name in each.names if each.flag else ():
            assert f"--{name}" in words
    assert all(each.variable in text for each in SERVER_OPTIONS.values())


def test_the_lines_fit_a_terminal() -> None:
    assert max(map(len, (serve_usage() + USAGE + EMULATE_USAGE).split("\n"))) <= 120
