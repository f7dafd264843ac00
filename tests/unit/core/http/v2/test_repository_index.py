from __future__ import annotations

from core.http.v2.repository_index import repository_index_json
from core.lifecycle.repository_index import IndexEntry
from core.lifecycle.state import ModelState


def test_keys_without_a_value_are_left_out() -> None:
    entries = [
        IndexEntry(name="never loaded"),
        IndexEntry(name="broken", state=ModelState.UNAVAILABLE, reason="Internal: why"),
        IndexEntry(name="ready", version=7, state=ModelState.READY),
    ]
    assert repository_index_json(entries) == [
        {"name": "never loaded"},
        {"name": "broken", "state": "UNAVAILABLE", "reason": "Internal: why"},
        {"name": "ready", "version": "7", "state": "READY"},
    ]
