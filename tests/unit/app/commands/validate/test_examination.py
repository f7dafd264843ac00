from __future__ import annotations

from pathlib import Path

from tests.unit.app.commands.validate.repositories import bad_names, repository
from trident.app.commands.validate import Finding, examine
from trident.core.config.problem import Problem


def test_every_problem_of_every_model_is_found(tmp_path: Path) -> None:
    report = examine([repository(tmp_path, "bad", "good")], bad_names)
    assert report.models == 2
    assert [(each.model, each.path, each.message, each.hint) for each in report.findings] == [
        ("bad", "name", "is bad", "call it good"),
        ("bad", "input[0]", "is worse", ""),
    ]


def test_a_missing_repository_is_a_problem_and_the_others_are_examined(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    report = examine([missing, repository(tmp_path / "models", "good")], bad_names)
    assert report.models == 1
    assert [(each.path, each.message) for each in report.findings] == [
        (missing, "repository path is not a valid directory")
    ]


def test_a_repository_without_models_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (found,) = examine([str(tmp_path)], bad_names).findings
    assert found.message == f"there is no model in {tmp_path}"
    assert found.hint.startswith("found model.onnx, expected MODEL/1/model.onnx: ")


def test_a_model_in_two_repositories_is_a_problem(tmp_path: Path) -> None:
    one, two = repository(tmp_path / "one", "a", "b"), repository(tmp_path / "two", "b")
    (found,) = examine([one, two], bad_names).findings
    assert (found.repository, found.model, found.message) == (two, "b", "model appears in two or more repositories")
    assert found.hint == f"the other model is {tmp_path / 'one' / 'b'}"


def test_problems_between_models_are_reported_with_their_repository(tmp_path: Path) -> None:
    location = repository(tmp_path, "one", "two")
    problems = {"two": [Problem("ensemble_scheduling", "it does not fit", "change it")]}
    report = examine([location], lambda directory: [], together=lambda: problems)
    assert report.findings == [Finding(location, "two", "ensemble_scheduling", "it does not fit", "change it")]
