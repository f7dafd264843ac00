"""Repositories, and a check that finds problems by the name of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trident.core.config.problem import Problem
from trident.core.repository.repository import ModelDirectory


def repository(folder: Path, *models: str) -> str:
    for model in models:
        (folder / model).mkdir(parents=True)
    return str(folder)


def bad_names(directory: ModelDirectory) -> Sequence[Problem]:
    """Two problems for the model `bad`, none for others."""
    if directory.name != "bad":
        return []
    return [Problem("name", "is bad", "call it good"), Problem("input[0]", "is worse")]
