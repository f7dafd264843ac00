from __future__ import annotations

import pytest

from core.lifecycle.state import TRANSITIONS, ModelState, VersionState


def test_every_state_has_its_moves() -> None:
    assert set(TRANSITIONS) == set(ModelState)


def test_moves_keep_the_reason_of_the_last() -> None:
    state = VersionState("m", 1)
    assert state.current is ModelState.LOADING
    state.move(ModelState.UNAVAILABLE, "Internal: broken")
    assert (state.current, state.reason) == (ModelState.UNAVAILABLE, "Internal: broken")
    state.move(ModelState.LOADING)
    assert state.reason == ""
    state.move(ModelState.READY)
    state.move(ModelState.UNLOADING)
    state.move(ModelState.UNAVAILABLE, "unloaded")


def test_a_move_that_is_not_in_the_table_is_a_bug() -> None:
    state = VersionState("m", 1)
    with pytest.raises(RuntimeError, match="model m:1 cannot go from LOADING to UNLOADING"):
        state.move(ModelState.UNLOADING)
