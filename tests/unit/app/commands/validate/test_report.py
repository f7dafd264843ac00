from __future__ import annotations

import json

from trident.app.commands.validate import Finding, Report, json_report, text_report


def test_a_repository_without_problems_is_one_line() -> None:
    assert text_report(Report(models=3)) == "3 models, no problems\n"
    assert text_report(Report(models=1)) == "1 model, no problems\n"


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


def test_a_name_cannot_control_the_terminal() -> None:
    text = text_report(Report(models=1, findings=[Finding("/m", "a\x1b[2J", "b\r", "c\nd", "e\x9b")]))
    assert text.replace("\n", "").isprintable()
    assert text.count("\n") == 5


def test_the_json_report_has_every_field() -> None:
    report = Report(models=2, findings=[Finding("/models", "digits", "name", "is missing", "")])
    assert json.loads(json_report(report)) == {
        "models": 2,
        "problems": [{"repository": "/models", "model": "digits", "path": "name", "message": "is missing", "hint": ""}],
        "warnings": [],
    }


def test_warnings_follow_the_problems() -> None:
    found = Finding("/models", "digits", "response_cache", "has no effect", "remove it")
    report = Report(models=2, warnings=[found])
    assert text_report(report) == (
        "Warnings. The models load all the same; where no other effect is named, a setting has none.\n"
        "\n"
        "digits (/models)\n"
        "  response_cache  has no effect\n"
        "                  hint: remove it\n"
        "\n"
        "2 models, no problems; 1 warning\n"
    )
    assert [each["path"] for each in json.loads(json_report(report))["warnings"]] == ["response_cache"]
    report.findings.append(Finding("/models", "bad", "name", "is missing", ""))
    text = text_report(report)
    assert text.startswith("bad (/models)\n  name  is missing\n\nWarnings. The models load all the same")
    assert text.endswith("\n1 problem, in 1 of 2 models; 1 warning\n")
