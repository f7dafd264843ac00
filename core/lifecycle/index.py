"""The models and versions as the repository index, the overview and the metrics show them.

Source: docs/spec/http.md section 8, docs/spec/repository.md sections 1.4 and 1.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from trident.core.lifecycle.model import Model
from trident.core.lifecycle.state import REGISTERED, UNLOADED, IndexEntry, ModelState, VersionOverview
from trident.core.lifecycle.version import ModelVersion
from trident.core.observability.history import Activity
from trident.core.observability.statistics import VersionStateMetrics
from trident.core.repository.repository import is_passed_over
from trident.core.repository.sources import ModelKey


def repository_index(
    models: Iterable[Model],
    names: Mapping[ModelKey, str],
    ready_only: bool,
    registered: Mapping[ModelKey, Sequence[int]] = MappingProxyType({}),
) -> list[IndexEntry]:
    """The entries by model and version. `names` maps every model directory to why it cannot be loaded, or to "": that
    is said of a model that does not serve. `registered` are the versions of those that are loaded when something asks
    for them.
    """
    entries: dict[ModelKey, list[IndexEntry]] = {}
    if not ready_only:
        entries = {key: [_without_version(key, problem)] for key, problem in names.items()}
        entries |= {
            key: [
                IndexEntry(name=key.name, version=version, state=ModelState.UNAVAILABLE, reason=REGISTERED)
                for version in found
            ]
            for key, found in registered.items()
            if found
        }
    for model in models:
        versions = [version for _, version in sorted(model.versions.items()) if version.is_ready or not ready_only]
        has_left = model.key not in names and not is_passed_over(model.key.name)
        if model.key in registered or has_left:
            versions = [version for version in versions if version.state.reason != UNLOADED]
        if versions and (model.serving or not names.get(model.key)):
            entries[model.key] = [index_entry(model, version) for version in versions]
        elif model.problem and not model.versions and not ready_only:
            entries[model.key] = [_without_version(model.key, model.problem)]
    return [entry for key in sorted(entries) for entry in entries[key]]


def index_entry(model: Model, version: ModelVersion) -> IndexEntry:
    state = version.state.current
    # The last thing that went wrong: a problem of the model concerns all of its versions that are not unloaded.
    own = version.state.reason or version.reload_failure or version.trouble
    if not own and version.is_ready:
        own = version.restriction
    return IndexEntry(
        name=model.key.name,
        version=version.version,
        state=state,
        reason=own if own == UNLOADED or state is ModelState.UNLOADING else model.problem or own,
        device_bytes=version.device_bytes,
    )


def _without_version(key: ModelKey, problem: str) -> IndexEntry:
    return IndexEntry(name=key.name, state=ModelState.UNAVAILABLE if problem else None, reason=problem)


def overview(models: Iterable[Model], active: Mapping[tuple[str, int], Activity]) -> list[VersionOverview]:
    """Every version and the models without one; `active` are the versions that did something."""
    lines: list[VersionOverview] = []
    for model in models:
        if not model.versions:
            failed = IndexEntry(name=model.key.name, state=ModelState.UNAVAILABLE, reason=model.problem)
            lines.append(VersionOverview(entry=failed, hint=model.hint))
        for number, version in sorted(model.versions.items()):
            processes = version.processes()
            lines.append(
                VersionOverview(
                    entry=index_entry(model, version),
                    device=version.description.get("device", ""),
                    execution_provider=version.description.get("execution provider", ""),
                    backend=version.spec.backend if version.is_ready else "",
                    load_seconds=version.load_seconds,
                    memory_bytes=sum(each.resident_bytes for each in processes),
                    restarts=sum(each.restarts for each in processes),
                    sequences=version.sequences,
                    steps=tuple(step.name for step in version.steps),
                    hint=model.hint if model.problem else version.hint,
                    queued=version.queued,
                    oldest_execution_ns=version.statistics.oldest_execution_ns,
                    activity=active.get((model.key.name, number)),
                )
            )
    return lines


def version_states(model: Model) -> Iterator[VersionStateMetrics]:
    """One entry per version that serves, is being loaded or unloaded, or has failed.

    Versions that were unloaded have none: then UNAVAILABLE always means a failure, and the page does not grow with
    every model that was ever loaded.
    """
    namespace = model.key.namespace or None
    if not model.versions and model.problem:
        yield VersionStateMetrics(
            model=model.key.name, version="", state=ModelState.UNAVAILABLE.value, namespace=namespace
        )
    for number, version in sorted(model.versions.items()):
        if version.state.reason != UNLOADED:
            yield VersionStateMetrics(
                model=model.key.name, version=str(number), state=version.state.current.value, namespace=namespace
            )
