from __future__ import annotations

import subprocess
import sys

from tests.project import ROOT

# What serves. Each process of the server imports what it needs of these after the fork.
SERVING = {
    "flask",
    "gevent",
    "google.protobuf",
    "hpack",
    "jinja2",
    "numpy",
    "onnxruntime",
    "prometheus_client",
    "shtab",
    "werkzeug",
}


def test_the_main_process_imports_nothing_that_serves() -> None:
    code = "import sys, trident.app.cli, trident.app.settings.reading, trident.app.commands.serve; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert SERVING & set(ended.stdout.split()) == set()
