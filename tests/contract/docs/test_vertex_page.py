"""The examples of docs/vertex.md that call the emulated platform, with Google's SDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.docs.documented_examples import BLOCK
from tests.contract.emulators.vertex_emulator import VertexEmulator
from tests.project import ROOT

PAGE = (ROOT / "docs" / "vertex.md").read_text()
ADDRESS = "http://127.0.0.1:8199"
COMMAND = "trident emulate vertex deploy/models --port=8199 -- --vertex-ai-default-model=simple"


@pytest.mark.slow
def test_the_calls_of_the_emulated_platform_are_answered(shipped_models: Path, tmp_path: Path) -> None:
    examples = [text for language, text in BLOCK.findall(PAGE) if language == "python" and ADDRESS in text]
    assert (COMMAND in PAGE, len(examples)) == (True, 2)
    with VertexEmulator(tmp_path, shipped_models, "--", "--vertex-ai-default-model=simple") as emulator:
        names: dict[str, object] = {}
        for text in examples:  # the second goes on with the names of the first
            exec(text.replace(ADDRESS, emulator.url), names)
        assert emulator.stop() == 0, emulator.log_text()
