from __future__ import annotations

from typing import Any

import pytest

from tests.project import pure_python_only
from trident.core.lifecycle.models import Models, StartProgress
from trident.core.lifecycle.state import Phase, ServingPhase


class KnownModels(Models):
    """Models that are unready for these reasons."""

    def __init__(self, **unready: str) -> None:
        make: Any = None
        super().__init__(make)
        self._unready = unready

    def unready(self) -> dict[str, str]:
        return self._unready

    def names(self) -> set[str]:
        return {"a", "b", *self._unready}


@pytest.fixture
def progress() -> StartProgress:
    return StartProgress()


@pure_python_only
def test_the_phase_counts_the_models_while_they_load(progress: StartProgress) -> None:
    assert progress.serving_phase(KnownModels()) == ServingPhase(name=Phase.STARTING)
    assert not progress.wait_listed(0.0)
    progress.begin(2)
    assert progress.wait_listed(0.0)
    progress.begin_model("a")
    assert progress.serving_phase(KnownModels()) == ServingPhase(name=Phase.LOADING, model="a", total=2)
    progress.end_model("a", "")
    assert progress.serving_phase(KnownModels()) == ServingPhase(name=Phase.LOADING, done=1, total=2)
    assert not progress.has_ended
    assert not progress.wait(0.0)


def test_a_start_that_cannot_list_ends(progress: StartProgress) -> None:
    progress.fail("model repository", "why")
    progress.end()
    assert progress.wait_listed(0.0)


@pure_python_only
def test_a_model_that_failed_is_not_counted_until_it_serves(progress: StartProgress) -> None:
    progress.begin(2)
    for name, failure in (("a", ""), ("b", "why")):
        progress.begin_model(name)
        progress.end_model(name, failure)
    progress.end()
    failed = ServingPhase(name=Phase.FAILED, done=1, total=2, failures={"b": "why"})
    assert progress.serving_phase(KnownModels(b="why")) == failed
    assert progress.serving_phase(KnownModels()) == ServingPhase(name=Phase.FAILED, done=2, total=2)


@pytest.mark.parametrize(("failure", "phase"), [("", Phase.READY), ("why", Phase.FAILED)])
def test_a_failed_model_fails_the_start(progress: StartProgress, failure: str, phase: Phase) -> None:
    progress.begin(1)
    progress.begin_model("a")
    progress.end_model("a", failure)
    progress.end()
    assert progress.phase is phase
    assert progress.wait(0.0)


@pure_python_only
def test_after_the_start_the_models_say_what_is_unready(progress: StartProgress) -> None:
    progress.begin(2)
    progress.fail("a", "it failed at the start and serves now")
    progress.fail("missing", "not found")
    progress.end()
    phase = progress.serving_phase(KnownModels(b="", c="broken"))
    assert (phase.model, phase.failures) == ("b", {"missing": "not found", "c": "broken"})


def test_an_exit_during_the_start_stays_an_exit(progress: StartProgress) -> None:
    progress.exit()
    progress.begin(1)
    progress.end()
    assert progress.phase is Phase.EXITING
    assert progress.has_ended
