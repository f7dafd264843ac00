"""docs/python-models.md: its models are served, and their examples answer as written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.docs.documented_examples import ADDRESS, Example, assert_answers, examples, write_model
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

PAGE = (ROOT / "docs" / "python-models.md").read_text()
EXAMPLES = [example for example in examples(PAGE) if ADDRESS in example.text]


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("python")
    write_model(PAGE, folder / "models" / "ratio" / "1")
    write_model(PAGE.partition("## Iterations")[2], folder / "models" / "countdown" / "1")
    with ServerProcess(folder / "models", folder / "log", "--shutdown-grace-secs=0") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_example_answers_as_written(example: Example, server: ServerProcess) -> None:
    assert_answers(example, server)


def test_page_shows_answers_and_an_error() -> None:
    assert ['"error"' in example.answer for example in EXAMPLES] == [False, True, False]
