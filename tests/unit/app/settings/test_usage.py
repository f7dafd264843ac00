from __future__ import annotations

from app.settings.server import SERVER_OPTIONS
from app.settings.unused import UNUSED_OPTIONS
from app.settings.usage import EMULATE_USAGE, USAGE, default_text, serve_usage, spelled


def test_every_option_is_in_the_help_text() -> None:
    text = serve_usage()
    words = set(text.replace("=", " ").replace(",", " ").split())
    for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS):
        for name in each.names if each.flag else ():
            assert f"--{name}" in words
    assert all(each.variable in text for each in SERVER_OPTIONS.values())


def test_the_lines_fit_a_terminal() -> None:
    assert max(map(len, (serve_usage() + USAGE + EMULATE_USAGE).split("\n"))) <= 120


def test_an_option_is_spelled_as_it_is_typed() -> None:
    assert spelled(SERVER_OPTIONS["http_port"]) == "--http-port=<integer>"
    assert spelled(SERVER_OPTIONS["log_info"]) == "--log-info=true|false"
    assert spelled(SERVER_OPTIONS["model_repository"]) == "--model-repository=<string>, --model-store=<string>"
    assert spelled(SERVER_OPTIONS["disable_auto_complete_config"]) == "--disable-auto-complete-config"
    assert spelled(SERVER_OPTIONS["delay_scheduler"]) == "TRITONSERVER_DELAY_SCHEDULER=<integer>"


def test_a_default_that_depends_on_other_options_is_described() -> None:
    assert default_text(SERVER_OPTIONS["http_port"]) == "8000"
    assert default_text(SERVER_OPTIONS["metrics_address"]) == "that of --http-address"
    assert default_text(SERVER_OPTIONS["model_config_name"]) == ""
