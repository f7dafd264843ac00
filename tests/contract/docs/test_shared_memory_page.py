"""docs/shared-memory.md: its example answers as written, over both protocols."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.docs.documented_examples import ADDRESS, GRPC_ADDRESS, assert_answers, examples
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

PAGE = (ROOT / "docs" / "shared-memory.md").read_text()
(EXAMPLE,) = (example for example in examples(PAGE) if ADDRESS in example.text)


@pytest.mark.slow
def test_the_example_answers_as_written(http_workers: str, shipped_models: Path, tmp_path: Path) -> None:
    with ServerProcess(
        shipped_models, tmp_path / "log", "--shutdown-grace-secs=0", "--allow-client-shm=true"
    ) as server:
        assert_answers(EXAMPLE, server)
        over_grpc = EXAMPLE.text.replace("tritonclient.http", "tritonclient.grpc").replace(ADDRESS, GRPC_ADDRESS)
        assert_answers(replace(EXAMPLE, text=over_grpc), server)
