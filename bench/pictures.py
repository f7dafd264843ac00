"""The pictures of figures in README and docs, as SVG for light and for dark pages.

python -m bench.pictures        writes docs/pictures from the files in bench/results
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.results import RESULTS
from tests.project import ROOT

PICTURES = ROOT / "docs" / "pictures"
THEMES = {
    "light": {"text": "#1f2328", "faint": "#656d76", "line": "#d0d7de", "bar": "#0969da", "behind": "#bc4c00"},
    "dark": {"text": "#e6edf3", "faint": "#8d96a0", "line": "#30363d", "bar": "#4493f8", "behind": "#db6d28"},
}
CASES = {
    "add/sub of 16 integers, JSON": "small request, JSON",
    "add/sub of 16 integers, binary": "small request, binary",
    "add/sub of 16 integers, gRPC": "small request, gRPC",
    "600 KB tensor echoed, binary": "600 KB tensor, binary",
    "3x224x224 image as JSON, echoed": "image as JSON",
    "28x28 digit CNN, JSON": "small CNN, JSON",
    "28x28 digit CNN, binary": "small CNN, binary",
    "Python model, JSON": "Python model, JSON",
    "Python model, binary": "Python model, binary",
}
CONNECTIONS = 16
ROW, TOP, LABEL, PANEL, GAP = 26, 52, 170, 260, 34


@dataclass(frozen=True)
class Panel:
    """Bars of one figure, one for each label. A bar is coloured as behind where it does not reach `level`."""

    title: str
    values: Sequence[float]
    more_is_better: bool
    level: float = 1.0

    @property
    def end(self) -> float:
        """The value at the right edge."""
        return math.ceil(max(*self.values, self.level) * 2) / 2


def svg(labels: Sequence[str], panels: Sequence[Panel], caption: str, theme: str) -> str:
    """One row for each label with a bar in each panel, and a line at the panel's level."""
    colours = THEMES[theme]
    width = LABEL + len(panels) * (PANEL + GAP)
    bottom = TOP + ROW * len(labels)
    parts = [_text(LABEL - 10, TOP + ROW * row + 17, label, colours["text"], "end") for row, label in enumerate(labels)]
    for column, panel in enumerate(panels):
        left = LABEL + column * (PANEL + GAP)
        scale = PANEL / panel.end
        parts.append(_text(left, 20, panel.title, colours["text"], weight=600))
        for row, value in enumerate(panel.values):
            ahead = (value >= panel.level) is panel.more_is_better or value == panel.level
            y = TOP + ROW * row
            parts.append(
                f'<rect x="{left}" y="{y + 5}" width="{value * scale:.1f}" height="{ROW - 10}" rx="2" '
                f'fill="{colours["bar" if ahead else "behind"]}"/>'
            )
            inside = value * scale > PANEL - 40
            x, anchor = (left + value * scale - 5, "end") if inside else (left + value * scale + 5, "start")
            if not inside and 0 <= panel.level - value < 30 / scale:
                x = left + panel.level * scale + 5  # beyond the line, not on it
            parts.append(_text(x, y + 17, f"{value:.2f}", "#ffffff" if inside else colours["faint"], anchor))
        x = left + panel.level * scale
        parts.append(f'<path d="M{x:.1f} {TOP - 6}V{bottom}" stroke="{colours["text"]}" stroke-dasharray="3 3"/>')
        parts.append(_text(x, TOP - 10, "Triton", colours["faint"], "middle"))
    parts.append(_text(LABEL, bottom + 22, caption, colours["faint"]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 34}" role="img" font-size="12" '
        f'font-family="system-ui, sans-serif"><title>{html.escape(caption)}</title>{"".join(parts)}</svg>\n'
    )


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{html.escape(text)}</text>"
    )


def beside_triton(file: Path) -> tuple[list[str], list[Panel], str]:
    """Labels, panels and caption of the newest run beside Triton."""
    document = json.loads(file.read_text())
    found = {(figure["case"], figure["what"]): figure["values"][0] for figure in document["figures"]}

    def values(what: str) -> list[float]:
        return [found[f"{case}, {CONNECTIONS} connections", what] for case in CASES]

    panels = [
        Panel("Requests per second over Triton's", values("requests/s over Triton's"), more_is_better=True),
        Panel("CPU time per request over Triton's", values("CPU per request over Triton's"), more_is_better=False),
    ]
    about = document["machine"]
    caption = (
        f"{CONNECTIONS} connections, {about['cpu']}, {about['cores']} cores, {document['date']}; more in docs/speed.md"
    )
    return list(CASES.values()), panels, caption


def write(name: str, labels: Sequence[str], panels: Sequence[Panel], caption: str) -> Iterable[Path]:
    for theme in THEMES:
        path = PICTURES / f"{name}-{theme}.svg"
        path.write_text(svg(labels, panels, caption, theme))
        yield path


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    newest = sorted(RESULTS.glob("*-beside-triton.json"))[-1]
    for path in write("beside-triton", *beside_triton(newest)):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
