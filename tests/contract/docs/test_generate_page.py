"""docs/streams.md, generate: its model is served, and its examples answer as written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.docs.documented_examples import ADDRESS, Example, assert_answers, examples, write_model
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

PAGE = (ROOT / "docs" / "streams.md").read_text().partition("## WebSocket")[0]
EXAMPLES = [example for example in examples(PAGE) if ADDRESS in example.text]


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("generate")
    write_model(PAGE, folder / "models" / "words" / "1")
    with ServerProcess(folder / "models", folder / "log", "--shutdown-grace-secs=0") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_example_answers_as_written(example: Example, server: ServerProcess) -> None:
    assert_answers(example, server)


def test_page_shows_every_kind_of_call() -> None:
    texts = [example.text for example in EXAMPLES]
    assert len(texts) == 4
    assert any("curl -sN" in text for text in texts)
    assert any("requests.post" in text for text in texts)
    assert any("words/generate " in text for text in texts)
