"""The console in front of models on demand.

Source: docs/models-on-demand.md, docs/console.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.contract.servers.server import ServerProcess
from trident.tools.overview import status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.shapes("front-ends"),
]


@pytest.fixture(scope="module")
def server(
    http_workers: str, shipped_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("demand") / "log"
    options = ("--console=true", "--model-control-mode=demand", "--model-idle-secs=1", "--shutdown-grace-secs=0")
    with ServerProcess(shipped_models, log, *options) as running:
        yield running


def test_console_shows_loaded_models_their_memory_and_unload_reasons(
    open_page: Callable[..., Page], server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    page = open_page("/demand")
    expect(page.get_by_text("Nothing has asked for a model yet.")).to_be_visible()
    server.json("GET", "/v2/models/simple")
    server.json("POST", "/v2/repository/models/digits/load", {})
    models = page.get_by_role("region", name="Cold starts").locator("tbody tr")
    gone = page.get_by_role("region", name="Models that were let go").locator("tbody tr")
    expect(gone.filter(has_text="simple")).to_contain_text("it was idle for 1 s")
    expect(models.filter(has_text="simple").locator("td").nth(3)).to_have_text("1")
    expect(models.filter(has_text="simple")).to_contain_text("registered")
    expect(models.filter(has_text="digits")).to_contain_text("in memory pinned")
    expect(page.locator(".tile").filter(has_text="Models in memory")).to_contain_text("1 of ")
    # Clients may load and unload here.
    page.goto(f"http://{server.address}/console#/repository")
    expect(page.get_by_role("button", name="Unload digits")).to_be_enabled()
    row = page.get_by_role("row").filter(has_text="simple")
    expect(row).to_contain_text("registered")
    expect(row).not_to_contain_text("unavailable")
    assert status([f"http://{server.address}"]) == 0
    shown = capsys.readouterr().out
    assert "models in memory" in shown
    assert "cold starts: simple 1, last " in shown
    assert "simple, " in shown
    assert "it was idle for 1 s" in shown
