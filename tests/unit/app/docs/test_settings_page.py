from __future__ import annotations

from tests.project import ROOT
from trident.app.docs.settings_page import settings_page

PAGE = ROOT / "docs" / "settings.md"


def test_the_page_is_generated_from_the_settings() -> None:
    assert PAGE.read_text() == settings_page(), "run: python -m trident.app.docs.settings_page > docs/settings.md"


def test_an_entry_has_option_variable_default_and_meaning() -> None:
    lines = settings_page().splitlines()
    assert "* `--http-port=<integer>`, `TRIDENT_HTTP_PORT` (8000): The HTTP port." in lines
    assert any(line.startswith("* `CUDA_VISIBLE_DEVICES` (all): ") for line in lines)
