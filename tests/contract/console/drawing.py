"""Drawing with the mouse into the form of the console."""

from __future__ import annotations

from playwright.sync_api import Page

SEVEN = [[(0.25, 0.15), (0.75, 0.15), (0.4, 0.88)]]


def draw(page: Page, strokes: list[list[tuple[float, float]]]) -> None:
    box = page.locator(".pad canvas").bounding_box()
    assert box is not None
    for stroke in strokes:
        points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point, steps=8)
        page.mouse.up()
