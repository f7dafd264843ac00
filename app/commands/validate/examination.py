"""Examines the models of repositories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.validate.report import Finding, Report
from core.errors import RepositoryUnavailable

if TYPE_CHECKING:
    from core.config.problem import Problem
    from core.repository.layout import ModelDirectory

# Finds the problems of one model, or its warnings.
Check = Callable[["ModelDirectory"], Sequence["Problem"]]


def examine(repositories: Iterable[str], check: Check, warn: Check = lambda directory: ()) -> Report:
    """Report the problems that `check` finds in each model, those of the repositories, and the warnings of `warn`."""
    from core.repository.layout import scan_repository

    report = Report()
    places: dict[str, str] = {}
    for repository in repositories:
        try:
            directories = scan_repository(Path(repository))
        except RepositoryUnavailable as error:
            report.findings.append(Finding(repository, "", repository, error.message, error.hint or ""))
            continue
        for directory in directories:
            report.models += 1
            other = places.setdefault(directory.name, repository)
            if other != repository:
                hint = f"the other model is {Path(other, directory.name)}"
                message = "model appears in two or more repositories"
                report.findings.append(Finding(repository, directory.name, str(directory.path), message, hint))
            report.findings += _findings(repository, directory, check(directory))
            report.warnings += _findings(repository, directory, warn(directory))
    return report


def _findings(repository: str, directory: ModelDirectory, problems: Iterable[Problem]) -> list[Finding]:
    return [Finding(repository, directory.name, each.path, each.message, each.hint) for each in problems]
