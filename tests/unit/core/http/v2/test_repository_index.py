from __future__ import annotations

from trident.core.http.admin import repository_index_json
from trident.core.lifecycle.state import IndexEntry, ModelState


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
