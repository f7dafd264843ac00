"""A browser, and the pages that it opens of the server of a test file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.contract.servers.server import ServerProcess
from tests.needed import program

LIMIT_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = program("chromium", "apt install chromium")
    expect.set_options(timeout=LIMIT_MS)
    with sync_playwright() as playwright:
        # Without a sandbox, which root may not have.
        yield (made := playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]))
        made.close()


@pytest.fixture
def open_page(browser: Browser, server: ServerProcess) -> Iterator[Callable[..., Page]]:
    """Opens a view of the console. At the end no page may have reported an error or a breach of its policy."""
    faults: list[str] = []
    contexts = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and "status of" not in message.text:  # a refusal by the server is no fault
            faults.append(message.text)

    def opened(view: str = "/", *, base: str = "", width: int = 1200, theme: Any = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 820}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.on("console", note)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"a dialog: {dialog.message}"))
        page.goto(f"{base or f'http://{server.address}'}/console#{view}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []
