from __future__ import annotations

import pytest

from core.errors import ModelNotFound, ModelNotReady, ServerError
from core.lifecycle.models import ModelEntry, Models
from core.lifecycle.state import UNLOADED, ModelState
from core.lifecycle.version import ModelVersion


def models(*versions: tuple[str, int, ModelState]) -> Models:
    known = Models()
    for name, number, state in versions:
        known.add(name)
        version = ModelVersion(name, number)
        known.put(version)
        if state is not ModelState.LOADING:
            version.state.move(state, "Internal: broken" if state is ModelState.UNAVAILABLE else "")
    known.refresh()
    return known


def test_finds_a_version_and_the_latest_ready_one() -> None:
    known = models(("m", 1, ModelState.READY), ("m", 3, ModelState.READY), ("m", 7, ModelState.UNAVAILABLE))
    assert known.find("m", 1).version == 1
    assert known.find("m", -1).version == 3
    assert known.ready_versions("m") == [1, 3]


@pytest.mark.parametrize(
    ("name", "version", "kind", "message"),
    [
        ("nope", -1, ModelNotFound, "Request for unknown model: 'nope' is not found"),
        ("m", 9, ModelNotFound, "Request for unknown model: 'm' version 9 is not found"),
        ("m", 7, ModelNotReady, "Request for unknown model: 'm' version 7 is not at ready state"),
        ("loading", -1, ModelNotFound, "Request for unknown model: 'loading' has no available versions"),
        ("empty", -1, ModelNotFound, "Request for unknown model: 'empty' is not found"),
    ],
)
def test_lookup_errors_have_tritons_texts(name: str, version: int, kind: type[ServerError], message: str) -> None:
    known = models(("m", 1, ModelState.READY), ("m", 7, ModelState.UNAVAILABLE), ("loading", 1, ModelState.LOADING))
    known.add("empty", "Invalid argument: nothing in it")
    with pytest.raises(kind) as caught:
        known.find(name, version)
    assert caught.value.message == message


def test_the_hint_says_why_a_version_is_not_ready() -> None:
    with pytest.raises(ModelNotReady) as caught:
        models(("m", 7, ModelState.UNAVAILABLE)).find("m", 7)
    assert caught.value.hint == "version 7 is UNAVAILABLE: Internal: broken"


def test_an_entry_is_ready_when_each_version_is_or_was_unloaded_on_purpose() -> None:
    assert not ModelEntry("m").is_ready
    (entry,) = models(("m", 1, ModelState.READY), ("m", 2, ModelState.READY)).entries()
    assert entry.is_ready
    entry.versions[1].state.move(ModelState.UNLOADING)
    assert not entry.is_ready
    entry.versions[1].state.move(ModelState.UNAVAILABLE, UNLOADED)
    assert entry.is_ready
    (failed,) = models(("m", 1, ModelState.UNAVAILABLE)).entries()
    assert not failed.is_ready
