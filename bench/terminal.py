"""The picture of a terminal in docs: a model is imported, measured and tuned, and what the commands print is drawn.

python -m bench.terminal        runs them for real, about 90 seconds, and writes docs/pictures/terminal.svg
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bench.pictures import PICTURES
from tests.project import ROOT

WIDTH = 100
COMMANDS = (
    "trident import digits.onnx",
    "trident bench digits --repository=models -p 2000 --output=",
    "trident tune digits --repository=models --p99=20ms --budget=60s",
)
# A file of its own must be enough: fonts of other servers are not fetched.
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
LONGEST = 240


def main() -> None:
    console = Console(record=True, width=WIDTH, file=StringIO())
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": str(WIDTH),
        "NO_COLOR": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "deploy/models/digits/1/model.onnx", Path(folder, "digits.onnx"))
        for command in COMMANDS:
            done = subprocess.run(
                command.split(), cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=300
            )
            console.print(Text(f"$ {command}", style="bold green"))
            for line in (done.stdout + done.stderr).splitlines():
                console.print(Text(line if len(line) <= LONGEST else line[:LONGEST] + " …"))
            console.print()
    drawing = FONTS.sub("", console.export_svg(title="trident", font_aspect_ratio=0.6))
    (PICTURES / "terminal.svg").write_text(drawing)


if __name__ == "__main__":
    main()
