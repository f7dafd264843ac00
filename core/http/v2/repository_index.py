"""The repository index as v2 JSON: a key without a value is left out.

Source: docs/spec/http.md section 8.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.lifecycle.repository_index import IndexEntry


def repository_index_json(entries: Iterable[IndexEntry]) -> list[dict[str, str]]:
    return [_entry(entry) for entry in entries]


def _entry(entry: IndexEntry) -> dict[str, str]:
    rendered = {"name": entry.name}
    if entry.version is not None:
        rendered["version"] = str(entry.version)
    if entry.state is not None:
        rendered["state"] = entry.state.value
    if entry.reason:
        rendered["reason"] = entry.reason
    return rendered
