from __future__ import annotations

import pytest

from trident.adapters.common.options import BadOption
from trident.app.emulators.usage import EMULATE_USAGE
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS
from trident.app.settings.usage import HELP_TOPIC, USAGE, serve_usage


def test_every_option_is_in_the_help_text() -> None:
    text = serve_usage("all")
    words = set(text.replace("=", " ").replace(",", " ").split())
    for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS):
        for name in each.names if each.flag else ():
            assert f"--{name}" in words
    assert all(each.variable in text for each in SERVER_OPTIONS.values())
    assert max(map(len, (serve_usage() + serve_usage("all") + USAGE + EMULATE_USAGE).split("\n"))) <= 120


def test_the_help_of_serve_has_fifteen_options_and_the_names_of_the_groups() -> None:
    text = serve_usage()
    assert text.count("\n  --") == 15 + 1  # and the groups
    for group in HELP_TOPIC.words:
        assert serve_usage(group)
        assert group in text
    assert serve_usage("http").startswith("HTTP\n  --allow-http=")
    assert "--grpc-port" not in serve_usage("http")


def test_an_unknown_group_names_the_groups() -> None:
    with pytest.raises(BadOption, match="there is no group 'htp'; the groups are model-repository, "):
        serve_usage("htp")
