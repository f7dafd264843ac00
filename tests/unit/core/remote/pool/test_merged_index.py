"""The repository index of several engines."""

from __future__ import annotations

import pytest

from trident.core.lifecycle.state import IndexEntry, ModelState
from trident.core.remote.merged import merged_index

READY = IndexEntry(name="m", version=1, state=ModelState.READY)


@pytest.mark.parametrize("state", [ModelState.LOADING, ModelState.UNLOADING, ModelState.UNAVAILABLE])
def test_the_worst_state_counts(state: ModelState) -> None:
    other = IndexEntry(name="m", version=1, state=state, reason="why")
    assert merged_index([[READY], [other]]) == [other]
    assert merged_index([[other], [READY]]) == [other]


def test_a_reason_of_any_engine_is_shown() -> None:
    with_reason = IndexEntry(name="m", version=1, state=ModelState.READY, reason="a newer one failed")
    assert merged_index([[READY], [with_reason]]) == [with_reason]


def test_the_entries_go_by_name_and_version() -> None:
    entries = [
        IndexEntry(name=name, version=int(version), state=ModelState.READY) for name, version in ("a1", "a2", "b1")
    ]
    assert merged_index([entries[1:], entries[:1], entries]) == entries


def test_a_model_that_no_engine_has_loaded_has_no_state() -> None:
    never = IndexEntry(name="n")
    assert merged_index([[never], [never]]) == [never]


def test_a_model_that_one_engine_has_loaded_is_shown_with_its_version_only() -> None:
    assert merged_index([[IndexEntry(name="m")], [READY]]) == [READY]
