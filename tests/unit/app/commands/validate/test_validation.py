"""`trident validate`: options, the examination of models, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.app.commands.validate.repositories import bad_names, repository
from trident.adapters.common.options import BadOption
from trident.app.commands.validate import (
    Finding,
    Report,
    examine,
    json_report,
    read_validate_options,
    text_report,
)
from trident.app.settings.reading import CloudCache
from trident.core.config.problem import Problem


def test_cache_is_that_of_serve() -> None:
    variables = {
        "TRIDENT_MODEL_CACHE_DIRECTORY": "/cache",
        "TRIDENT_MODEL_CACHE_BYTES": "5",
        "TRITON_CLOUD_CREDENTIAL_PATH": "/keys",
    }
    options = read_validate_options(["s3://bucket", "--model-cache-bytes=7"], variables)
    assert options.cache == CloudCache(directory="/cache", max_bytes=7, credential_path="/keys")
    mounted = read_validate_options(["s3://bucket"], {"TRITON_GCS_MOUNT_DIRECTORY": "/mnt"})
    assert mounted.cache.directory == "/mnt/trident"


@pytest.mark.parametrize("arguments", [[], ["a", "--format=xml"], ["a", "--http-port=1"], ["a", "--backend-config=x"]])
def test_a_bad_option_is_refused(arguments: list[str]) -> None:
    with pytest.raises(BadOption):
        read_validate_options(arguments)


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


def test_a_report_is_safe_for_a_terminal() -> None:
    assert text_report(Report(models=3)) == "3 models, no problems\n"
    assert text_report(Report(models=1)) == "1 model, no problems\n"
    text = text_report(Report(models=1, findings=[Finding("/m", "a\x1b[2J", "b\r", "c\nd", "e\x9b")]))
    assert text.replace("\n", "").isprintable()
    assert text.count("\n") == 5


def test_problems_are_aligned_below_their_model() -> None:
    report = Report(
        models=3,
        findings=[
            Finding("/models", "digits", "input[0].dims", "is wrong", "make it right"),
            Finding("/models", "digits", "name", "is missing", ""),
            Finding(
                "/models", "other", "/models/other/1/a/very/long/path/to/a/file/model.onnx", "is broken", "mend it"
            ),
            Finding("/nowhere", "", "/nowhere", "is not a directory", ""),
        ],
    )
    assert text_report(report) == (
        "digits (/models)\n"
        "  input[0].dims  is wrong\n"
        "                 hint: make it right\n"
        "  name           is missing\n"
        "\n"
        "other (/models)\n"
        "  /models/other/1/a/very/long/path/to/a/file/model.onnx\n"
        "    is broken\n"
        "    hint: mend it\n"
        "\n"
        "/nowhere\n"
        "  /nowhere  is not a directory\n"
        "\n"
        "4 problems, in 2 of 3 models\n"
    )


def test_the_json_report_has_every_field() -> None:
    report = Report(models=2, findings=[Finding("/models", "digits", "name", "is missing", "")])
    assert json.loads(json_report(report)) == {
        "models": 2,
        "problems": [{"repository": "/models", "model": "digits", "path": "name", "message": "is missing", "hint": ""}],
        "warnings": [],
    }
