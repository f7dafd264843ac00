"""The examples of docs/library.md print what the page says."""

from __future__ import annotations

import pytest

from tests.contract.docs.documented_examples import Example, examples, run, same
from tests.project import ROOT

EXAMPLES = [each for each in examples((ROOT / "docs" / "library.md").read_text()) if each.language == "python"]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_example_prints_what_is_written(example: Example) -> None:
    answer = run(example)
    assert same(answer, example.answer), answer
