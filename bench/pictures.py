"""The pictures of figures in README and docs, drawn as the pages of `trident bench` are.

python -m bench.pictures                          from the files in bench/results, and docker/sizes.json
python -m bench.pictures digits-tuned/tune.html   the frontier of a run of `trident tune`
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.results import RESULTS, Comparison, Turn
from docker.size import counted, read_sizes
from tests.project import ROOT
from trident.tools.bench.page import STYLE, TOP, WIDTH, svg, text

PICTURES = ROOT / "docs" / "pictures"
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
# In GB, as `docker images` printed them: issues 5383, 7474 and 8476 of triton-inference-server/server.
TRITON_IMAGES = {
    "Triton 23.01-py3-min, a base": 8.27,
    "Triton 25.02-py3-min, a base": 10.0,
    "Triton 23.01-tf2-python-py3": 10.2,
    "Triton 24.06-py3": 15.5,
    "Triton 23.01-py3": 16.0,
}
IMAGES = {"cpu": "Trident, CPUs", "gpu": "Trident, CUDA 13", "gpu12": "Trident, CUDA 12"}


# Of rows of bars: their labels, what is right of the longest bar, and the height of one.
_LABELS, _GAP, _ROW = 200, 48, 26


def rows(
    title: str,
    labels: Sequence[str],
    panels: Sequence[tuple[str, Sequence[tuple[float, int]]]],
    *,
    mark: tuple[float, str] | None = None,
) -> str:
    """A row for each label, with a bar in each panel: its value, and the number of the colour. `mark` is a value that
    is drawn across, with its name. The title stands below."""
    wide = (WIDTH - _LABELS) / len(panels) - _GAP
    bottom = TOP + _ROW * len(labels)
    parts = [text(_LABELS - 10, TOP + _ROW * at + 17, label, "end", "") for at, label in enumerate(labels)]
    for column, (heading, values) in enumerate(panels):
        left = _LABELS + column * (wide + _GAP)
        scale = wide / max([value for value, _ in values] + ([mark[0]] if mark else []))
        parts.append(text(left, 16, heading, "start", "title"))
        for at, (value, colour) in enumerate(values):
            parts.append(
                f'<rect class="s{colour} fill" x="{left:.1f}" y="{TOP + _ROW * at + 5}" width="{value * scale:.1f}" '
                f'height="{_ROW - 10}"/>'
            )
        if mark is not None:
            at_mark = left + mark[0] * scale
            parts.append(f'<line class="limit" x1="{at_mark:.1f}" x2="{at_mark:.1f}" y1="{TOP}" y2="{bottom}"/>')
            parts.append(text(at_mark, TOP - 6, mark[1], "middle", "faint"))
        for at, (value, _) in enumerate(values):
            parts.append(text(left + value * scale + 5, TOP + _ROW * at + 17, f"{value:.3g}", "start", "value"))
    return svg(title, [*parts, text(WIDTH / 2, bottom + 20, title, "middle", "faint")], bottom + 30)


def picture(plot: str) -> str:
    """A plot as a file of its own."""
    head, rest = plot.split(">", 1)
    ground = '<rect width="100%" height="100%" fill="var(--ground)"/>'
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>{ground}{rest}\n'


def beside_triton(file: Path) -> str:
    """The newest run beside Triton. A bar has the second colour where Trident is behind."""
    document = json.loads(file.read_text())
    found = {}
    for row in document["comparisons"]:
        pairs = [{name: Turn(**turn) for name, turn in pair.items()} for pair in row["pairs"]]
        found[row["title"], row["connections"]] = Comparison(row["title"], row["connections"], pairs, row["errors"])
    shown = [found[case, CONNECTIONS] for case in CASES]
    rates = [each.rate_ratio(each.loads[0]).median for each in shown]
    cpu = [each.cpu_ratio(each.loads[0]).median for each in shown]
    about = document["machine"]
    return rows(
        f"{CONNECTIONS} connections, {about['cpu']}, {about['cores']} cores, {document['date']}; more in docs/speed.md",
        list(CASES.values()),
        [
            ("Requests/s over Triton's", [(value, int(value < 1)) for value in rates]),
            ("CPU time over Triton's", [(value, int(value > 1)) for value in cpu]),
        ],
        mark=(1.0, "Triton"),
    )


def image_sizes() -> str:
    sizes = read_sizes()
    images = {label: (counted(image, sizes) / 1e9, 0) for image, label in IMAGES.items()}
    images |= {label: (size, 1) for label, size in TRITON_IMAGES.items()}
    title = "Trident: files in the image (docker/size.py). Triton: as users reported them."
    return rows(title, list(images), [("GB on disk", list(images.values()))])


def frontier(page: str) -> str:
    """The first plot of a page."""
    plot = re.search(r'<svg class="plot".*?</svg>', page, re.DOTALL)
    if plot is None:
        raise SystemExit("there is no plot: give the tune.html of `trident tune`")
    return plot[0]


def main() -> None:
    if len(sys.argv) > 1:
        plots = {"tuning": frontier(Path(sys.argv[1]).read_text())}
    else:
        newest = sorted(RESULTS.glob("*-beside-triton.json"))[-1]
        plots = {"beside-triton": beside_triton(newest), "image-sizes": image_sizes()}
    for name, plot in plots.items():
        (PICTURES / f"{name}.svg").write_text(picture(plot))


if __name__ == "__main__":
    main()
