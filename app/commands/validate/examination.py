"""Examines the models of repositories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.commands.validate.local_repository import LocalRepository
from app.commands.validate.report import Finding, Report
from core.errors import ServerError

if TYPE_CHECKING:
    from core.config.problem import Problem
    from core.repository.layout import ModelDirectory

# Finds the problems of one model, or its warnings.
Check = Callable[["ModelDirectory"], Sequence["Problem"]]
# Finds the problems of models with each other after all were checked, by model.
CheckTogether = Callable[[], Mapping[str, Sequence["Problem"]]]


class Repository(Protocol):
    """The methods raise ServerError if the repository, or the model, cannot be read."""

    def models(self) -> Sequence[str]:
        """The names of the models, sorted."""
        ...

    def directory(self, model: str) -> AbstractContextManager[ModelDirectory]:
        """The model on the local disk while the context lasts."""
        ...


def examine(
    repositories: Iterable[str],
    check: Check,
    warn: Check = lambda directory: (),
    open_repository: Callable[[str], Repository] = LocalRepository,
    together: CheckTogether = dict,
) -> Report:
    """Report the problems that `check` finds in each model and `together` between them, those of the repositories, and
    the warnings of `warn`.
    """
    from core.repository.layout_mistakes import no_models_hint

    report = Report()
    places: dict[str, str] = {}
    for location in repositories:
        try:
            repository = open_repository(location)
            models = repository.models()
        except ServerError as error:
            report.findings.append(Finding(location, "", location, error.message, error.hint or ""))
            continue
        if not models:
            text = f"there is no model in {location}"
            report.findings.append(Finding(location, "", location, text, no_models_hint(location)))
        for model in models:
            report.models += 1
            path = _joined(location, model)
            other = places.setdefault(model, location)
            if other != location:
                hint = f"the other model is {_joined(other, model)}"
                report.findings.append(
                    Finding(location, model, path, "model appears in two or more repositories", hint)
                )
            try:
                with repository.directory(model) as directory:
                    report.findings += _findings(location, directory, check(directory))
                    report.warnings += _findings(location, directory, warn(directory))
            except ServerError as error:
                report.findings.append(Finding(location, model, path, error.message, error.hint or ""))
    for model, problems in together().items():
        report.findings += [Finding(places[model], model, each.path, each.message, each.hint) for each in problems]
    return report


def _findings(location: str, directory: ModelDirectory, problems: Iterable[Problem]) -> list[Finding]:
    """The findings of a model; paths in the directory are shown as paths in the repository."""
    on_disk, shown = str(directory.path), _joined(location, directory.name)
    return [
        Finding(
            location, directory.name, each.path.replace(on_disk, shown), each.message.replace(on_disk, shown), each.hint
        )
        for each in problems
    ]


def _joined(location: str, model: str) -> str:
    return f"{location.rstrip('/')}/{model}" if "://" in location else str(Path(location, model))
