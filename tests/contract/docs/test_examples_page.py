"""The requests of docs/examples.md, sent to a server of deploy/examples: the answers must be those of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.docs.documented_examples import Example, assert_answers, examples
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

EXAMPLES = examples((ROOT / "docs" / "examples.md").read_text())

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("examples") / "log"
    with ServerProcess(ROOT / "deploy" / "examples", log, "--shutdown-grace-secs=0") as running:
        yield running


def test_the_page_shows_every_kind_of_client() -> None:
    texts = [example.text for example in EXAMPLES]
    for client in ("curl -s ", "curl -sN ", "tritonclient.http", "tritonclient.grpc"):
        assert any(client in text for text in texts)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_example_answers_as_written(example: Example, server: ServerProcess) -> None:
    assert_answers(example, server)
