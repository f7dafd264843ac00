"""The repository index of several engines: a version is ready if it is ready in all of them.

Source: docs/spec/http.md section 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.lifecycle.repository_index import IndexEntry
from core.lifecycle.state import ModelState

# The worst first. None is a model that was never loaded.
_ORDER = (ModelState.UNAVAILABLE, None, ModelState.UNLOADING, ModelState.LOADING, ModelState.READY)


def worst_state(states: Iterable[ModelState | None]) -> ModelState | None:
    """The state that counts for a version that has these states in the engines; at least one."""
    return min(states, key=_ORDER.index)


def merged_index(of_engines: Sequence[Sequence[IndexEntry]]) -> list[IndexEntry]:
    """The entries by model and version, each in its worst state, with the first reason that an engine gives for it.

    A version that only some engines know is in the state in which they have it: the others are about to know it, or
    know no longer.
    """
    found: dict[tuple[str, int | None], list[IndexEntry]] = {}
    for entries in of_engines:
        for entry in entries:
            found.setdefault((entry.name, entry.version), []).append(entry)
    with_versions = {name for name, version in found if version is not None}
    return [
        _merged(same)
        for (name, version), same in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or 0))
        if version is not None or name not in with_versions
    ]


def _merged(same: Sequence[IndexEntry]) -> IndexEntry:
    state = worst_state(entry.state for entry in same)
    worst = [entry for entry in same if entry.state is state]
    reason = next((entry.reason for entry in [*worst, *same] if entry.reason), "")
    return IndexEntry(name=same[0].name, version=same[0].version, state=state, reason=reason)
