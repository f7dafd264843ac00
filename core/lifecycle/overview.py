"""The overview of all model versions that the server logs when its start ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from core.lifecycle.model import Model
from core.lifecycle.repository_index import IndexEntry, index_entry
from core.lifecycle.state import ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOverview:
    """One model version and where it runs; empty texts for a version that does not run or a model without versions."""

    entry: IndexEntry
    device: str = ""
    execution_provider: str = ""


def overview(models: Iterable[Model]) -> list[VersionOverview]:
    lines: list[VersionOverview] = []
    for model in models:
        if not model.versions:
            failed = IndexEntry(name=model.key.name, state=ModelState.UNAVAILABLE, reason=model.problem)
            lines.append(VersionOverview(entry=failed))
        lines += [
            VersionOverview(
                entry=index_entry(model, version),
                device=version.description.get("device", ""),
                execution_provider=version.description.get("execution provider", ""),
            )
            for _, version in sorted(model.versions.items())
        ]
    return lines
