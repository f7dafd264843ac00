"""The console in front of ten models under a mixed load.

With CONSOLE_PICTURES=FOLDER the pictures of the docs and of the README are taken, after two minutes of it.

Source: docs/console.md.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.contract.console.drawing import SEVEN, draw
from tests.contract.console.mixed_load import documents, mixed_load, write_models
from tests.contract.servers.server import ServerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.shapes("front-ends"),
]

PICTURES = os.environ.get("CONSOLE_PICTURES", "")
THEMES = ("light", "dark")
# How many tables are wider than their cards.
CUT = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth).length"
STEPS = re.compile(r"preprocess .*, text_classifier .*, other ")


@pytest.fixture(scope="module")
def server(
    http_workers: str, shipped_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("load")
    shutil.copytree(shipped_models, folder / "models")
    write_models(folder / "models")
    with ServerProcess(folder / "models", folder / "log", "--console=true", "--shutdown-grace-secs=0") as running:
        yield running


def picture(page: Page, name: str) -> None:
    if PICTURES:
        page.wait_for_timeout(2500)  # figures are asked for once a second
        page.screenshot(path=Path(PICTURES) / f"{name}.png", animations="disabled")


def test_every_view_shows_a_mixed_load(open_page: Callable[..., Page], server: ServerProcess) -> None:
    with mixed_load(server):
        page = open_page()
        expect(page.locator("table.models tbody tr")).to_have_count(10)
        if PICTURES:
            page.wait_for_timeout(120_000)
        refused = page.get_by_role("region", name="Refused requests")
        expect(refused).to_contain_text("iriss")
        expect(refused).to_contain_text("unexpected shape for input 'IN'")
        page.goto(f"http://{server.address}/console#/models/classify_text/load")
        expect(page.get_by_role("img", name="Where the time goes")).to_have_attribute("aria-label", STEPS)
        # The server takes no changes.
        page.goto(f"http://{server.address}/console#/repository")
        expect(page.get_by_role("button", name="Reload digits")).to_be_disabled()
        expect(page.get_by_text("--model-control-mode=explicit")).to_be_visible()
        page = open_page(width=400)
        for view in ("/", "/repository"):
            page.goto(f"http://{server.address}/console#{view}")
            page.get_by_role("row").filter(has_text="embeddings").wait_for()
            assert page.evaluate(CUT) == 0, view
        for view, name, theme in (("/", "overview", "light"), ("/models/digits/load", "model", "dark")):
            page = open_page(view, theme=theme)
            page.wait_for_selector("main .card")
            picture(page, f"{name}-{theme}")
        for theme in THEMES:
            page = open_page("/models/digits/try", theme=theme)
            draw(page, SEVEN)
            page.get_by_role("button", name="Send the request").click()
            expect(page.locator(".verdict")).to_have_text("seven")
            picture(page, f"try-{theme}")
    # The last request is the first of the page.
    page = open_page("/traces", width=900)
    page.get_by_role("button", name="Trace the next 20").click()
    expect(page.get_by_text("every request is traced, 20 left")).to_be_visible()
    asked = documents(random.Random(0))[:6] * 4
    for _, path, make in asked[-20:]:
        server.json("POST", f"/v2/models/{path}", make())
    expect(page.get_by_text("no requests are traced now")).to_be_visible()
    expect(page.locator(".trace")).to_have_count(20)
    expect(page.locator(".trace").first).to_contain_text("text_classifier")
    picture(page, "traces-light")
