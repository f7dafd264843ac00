from __future__ import annotations

import pytest

from trident.core.lifecycle.state import TRANSITIONS, ModelState, VersionState


def test_every_state_has_a_row_in_the_table() -> None:
    assert set(TRANSITIONS) == set(ModelState)


def test_a_move_replaces_the_reason() -> None:
    failed = VersionState("m", 1, "server start")
    assert failed.current is ModelState.LOADING
    failed.move(ModelState.UNAVAILABLE, "Internal: broken")
    assert (failed.current, failed.reason) == (ModelState.UNAVAILABLE, "Internal: broken")


def test_every_move_is_logged_with_cause_and_duration(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    state = VersionState("m", 1, "server start")
    state.move(ModelState.READY)
    state.move(ModelState.UNLOADING, cause="unload request")
    state.move(ModelState.UNAVAILABLE, "unloaded")
    first, second, third = (record.getMessage() for record in caplog.records)
    assert first.startswith("'m' version 1: LOADING -> READY after 0.")
    assert first.endswith(" s, cause: server start")
    assert second.endswith(" s, cause: unload request")
    assert third.endswith(" s, cause: unload request (unloaded)")


def test_a_move_that_is_not_in_the_table_is_a_bug() -> None:
    state = VersionState("m", 1, "server start")
    with pytest.raises(RuntimeError, match="model m:1 cannot go from LOADING to UNLOADING"):
        state.move(ModelState.UNLOADING)
