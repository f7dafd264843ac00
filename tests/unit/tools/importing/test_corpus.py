"""A sample of the corpus of imported models. `python -m tests.import_corpus` runs all of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests import needed
from tests.import_corpus import run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("xgboost", "best round of dart"),
        ("xgboost", "categories of three classes"),
        ("lightgbm", "zero_as_missing of three"),
        ("lightgbm", "many categories"),
    ],
)
def test_an_imported_model_answers_as_the_original(tmp_path: Path, framework: str, name: str) -> None:
    needed.lightgbm()
    cases = import_module(f"tests.import_corpus.{framework}_models").CASES
    outcome = run(f"{framework}/{name}", cases[name], tmp_path / "case")
    assert outcome.verdict == "same", outcome.reason
