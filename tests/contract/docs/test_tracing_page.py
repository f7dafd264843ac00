"""docs/tracing.md: its commands trace a request to the ensemble of the examples, and show the tree of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.docs.documented_examples import ADDRESS, BLOCK
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow

BLOCKS = BLOCK.findall((ROOT / "docs" / "tracing.md").read_text())
COMMANDS = [text for language, text in BLOCKS if language == "bash"]
(TREE,) = [text for language, text in BLOCKS if language == "text"]
FILE = "/tmp/trace.json"


def names(tree: str) -> list[str]:
    """The branches and names of the lines, without durations and bars."""
    return [re.split(r"  +[0-9.]+ ms", line)[0].rstrip() for line in tree.splitlines()]


def test_the_commands_of_the_page_show_its_tree(http_workers: str, tmp_path: Path) -> None:
    start, switch, infer, show, *_ = COMMANDS
    options = start.replace(FILE, str(tmp_path / "trace.json")).split()[3:]
    with ServerProcess(ROOT / "deploy" / "examples", tmp_path / "log", *options, "--shutdown-grace-secs=0") as server:
        for command in (switch, infer):
            run = ["bash", "-c", command.replace(ADDRESS, server.address)]
            answer = subprocess.run(run, check=True, capture_output=True, text=True, timeout=60).stdout
            assert '"error"' not in answer
        until((tmp_path / "trace.json").exists, "nothing was written")
        arguments = [*show.split()[1:-1], str(tmp_path / "trace.json")]
        shown = subprocess.run(
            [sys.executable, "-m", "trident.app", *arguments],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=60,
        ).stdout
    assert names(shown) == names(TREE)
