from __future__ import annotations

from tests.project import ROOT
from trident.app.docs.settings_page import settings_page

PAGE = ROOT / "docs" / "settings.md"


def test_the_page_is_generated_from_the_settings() -> None:
    assert PAGE.read_text() == settings_page(), "run: python -m trident.app.docs.settings_page > docs/settings.md"


def test_every_row_has_three_cells() -> None:
    rows = [line for line in settings_page().split("\n") if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {4}
