"""The repository index: every model version with its state, and every model directory that was never loaded.

Source: docs/spec/http.md section 8, docs/spec/repository.md sections 1.4 and 1.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.lifecycle.state import UNLOADED, ModelState

if TYPE_CHECKING:
    from core.lifecycle.model import Model
    from core.lifecycle.version import ModelVersion
    from core.repository.repositories import ModelKey


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One version, or a model without versions: then `version` is None, and `state` too unless it failed to load.

    `reason` is empty if nothing went wrong. For a version that is ready it says why a newer one did not replace it.
    """

    name: str
    version: int | None = None
    state: ModelState | None = None
    reason: str = ""


def repository_index(models: Iterable[Model], names: Mapping[ModelKey, str], ready_only: bool) -> list[IndexEntry]:
    """The entries by model and version. `names` maps every model directory to why it cannot be loaded, or to "": that
    is said of a model that does not serve.
    """
    entries: dict[ModelKey, list[IndexEntry]] = {}
    if not ready_only:
        entries = {key: [_without_version(key, problem)] for key, problem in names.items()}
    for model in models:
        versions = [version for _, version in sorted(model.versions.items()) if version.is_ready or not ready_only]
        if versions and (model.serving or not names.get(model.key)):
            entries[model.key] = [index_entry(model, version) for version in versions]
        elif model.problem and not model.versions and not ready_only:
            entries[model.key] = [_without_version(model.key, model.problem)]
    return [entry for key in sorted(entries) for entry in entries[key]]


def index_entry(model: Model, version: ModelVersion) -> IndexEntry:
    state = version.state.current
    return IndexEntry(name=model.key.name, version=version.version, state=state, reason=_reason(model, version))


def _without_version(key: ModelKey, problem: str) -> IndexEntry:
    return IndexEntry(name=key.name, state=ModelState.UNAVAILABLE if problem else None, reason=problem)


def _reason(model: Model, version: ModelVersion) -> str:
    """The last thing that went wrong: a problem of the model concerns all of its versions that are not unloaded."""
    own = version.state.reason or version.reload_failure or version.trouble
    return own if own == UNLOADED or version.state.current is ModelState.UNLOADING else model.problem or own
