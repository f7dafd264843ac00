"""The examples of docs/vertex.md that call the emulated platform, with Google's SDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.docs.documented_examples import BLOCK
from tests.contract.emulators.vertex_emulator import VertexEmulator
from tests.contract.servers.ports import free_ports
from tests.project import ROOT
from tests.waiting import until

PAGE = (ROOT / "docs" / "vertex.md").read_text()
GRPC_ADDRESS = "127.0.0.1:PORT"
ADDRESS = "http://127.0.0.1:8199"
COMMAND = "trident emulate vertex deploy/models --port=8199 -- --vertex-ai-default-model=simple"


@pytest.mark.slow
def test_the_calls_of_the_emulated_platform_are_answered(shipped_models: Path, tmp_path: Path) -> None:
    blocks = [text for language, text in BLOCK.findall(PAGE) if language == "python"]
    examples = [text for address in (ADDRESS, GRPC_ADDRESS) for text in blocks if address in text]
    assert (COMMAND in PAGE, len(examples)) == (True, 2)
    (port,) = free_ports(1)
    arguments = ("--vertex-ai-default-model=simple", "--allow-grpc=true", f"--grpc-port={port}")
    with VertexEmulator(tmp_path, shipped_models, f"--grpc-port={port}", "--", *arguments) as emulator:
        until(lambda: "gRPC calls are" in emulator.log_text())
        for text in examples:
            exec(text.replace(ADDRESS, emulator.url).replace(GRPC_ADDRESS, emulator.grpc_address), {})
        assert emulator.stop() == 0, emulator.log_text()
