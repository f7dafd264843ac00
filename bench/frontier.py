"""The frontier of a page that `trident tune` wrote, as the picture of docs/tuning.md.

trident tune digits --repository deploy/models --p99 20ms --budget 5m
python -m bench.frontier digits-tuned/tune.html
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.project import ROOT
from trident.app.bench.plots import STYLE

PICTURE = ROOT / "docs" / "pictures" / "tuning.svg"


def standalone(page: str) -> str:
    """The first plot of a page, with the style that it has there: light or dark as the reader's system is."""
    plot = re.search(r'<svg class="plot"(.*?>)(.*?</svg>)', page, re.DOTALL)
    if plot is None:
        raise SystemExit("there is no plot: give the tune.html of `trident tune`")
    ground = '<rect width="100%" height="100%" fill="var(--ground)"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="plot"{plot[1]}<style>{STYLE}</style>{ground}{plot[2]}\n'


if __name__ == "__main__":
    PICTURE.write_text(standalone(Path(sys.argv[1]).read_text()))
    print(PICTURE.relative_to(ROOT))
