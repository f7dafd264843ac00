from __future__ import annotations

from functools import partial

import pytest

from trident.core.backends.registry import BackendRegistry
from trident.core.errors import ModelLoadFailed, ModelLoading, ModelNotFound, ModelNotReady, ServerError
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.model import Model, Retirement
from trident.core.lifecycle.models import Models, find_steps
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.state import UNLOADED, ModelState
from trident.core.lifecycle.version import ModelVersion
from trident.core.repository.repositories import ModelKey


def empty(*, namespacing: bool = False) -> Models:
    loader = ModelLoader(EngineOptions(repositories=()), BackendRegistry({}))
    known = Models(
        lambda key, models: Model(
            key, loader, Retirement(), models.publish, models.find, partial(find_steps, models, key.namespace)
        ),
        namespacing=namespacing,
    )
    known.are_listed = True
    return known


def enter(known: Models, key: ModelKey, number: int, state: ModelState) -> None:
    model = known.add(key)
    version = ModelVersion(key.name, number, "a test", known.find)
    if state is ModelState.LOADING:
        model.is_awaited = True
    else:
        version.state.move(state, "Internal: broken" if state is ModelState.UNAVAILABLE else "")
    model.versions = {**model.versions, number: version}
    if state is ModelState.READY:
        model.serving = {**model.serving, number: version}


def models(*versions: tuple[str, int, ModelState]) -> Models:
    known = empty()
    for name, number, state in versions:
        enter(known, ModelKey(name), number, state)
    known.publish()
    return known


@pytest.mark.parametrize(
    ("name", "version", "kind", "message"),
    [
        ("nope", -1, ModelNotFound, "Request for unknown model: 'nope' is not found"),
        ("m", 9, ModelNotFound, "Request for unknown model: 'm' version 9 is not found"),
        ("m", 7, ModelNotReady, "Request for unknown model: 'm' version 7 is not at ready state"),
        ("m", 8, ModelLoading, "Request for unknown model: 'm' version 8 is not at ready state"),
        ("gone", -1, ModelNotFound, "Request for unknown model: 'gone' has no available versions"),
        ("failed", 1, ModelNotReady, "Request for unknown model: 'failed' version 1 is not at ready state"),
        ("failed", 2, ModelNotFound, "Request for unknown model: 'failed' version 2 is not found"),
        ("loading", -1, ModelLoading, "model 'loading' is still being loaded"),
        ("loading", 1, ModelLoading, "Request for unknown model: 'loading' version 1 is not at ready state"),
        ("loading", 9, ModelNotFound, "Request for unknown model: 'loading' version 9 is not found"),
        ("awaited", -1, ModelLoading, "model 'awaited' is still being loaded"),
        ("awaited", 9, ModelLoading, "model 'awaited' is still being loaded"),
        ("empty", -1, ModelNotFound, "Request for unknown model: 'empty' is not found"),
        # Triton has the reasons of failed loads only in its log.
        ("failed", -1, ModelNotReady, "model 'failed' failed to load: version 1 is UNAVAILABLE: Internal: broken"),
        ("invalid", -1, ModelNotReady, "model 'invalid' failed to load: Invalid argument: nothing in it"),
        ("invalid", 1, ModelNotReady, "model 'invalid' failed to load: Invalid argument: nothing in it"),
    ],
)
def test_lookup_errors_have_the_texts_of_triton(name: str, version: int, kind: type[ServerError], message: str) -> None:
    known = models(
        ("m", 1, ModelState.READY),
        ("m", 7, ModelState.UNAVAILABLE),
        ("m", 8, ModelState.LOADING),
        ("loading", 1, ModelState.LOADING),
        ("failed", 1, ModelState.UNAVAILABLE),
        ("gone", 1, ModelState.READY),
    )
    gone = known.add(ModelKey("gone"))
    gone.serving = {}
    gone.versions[1].state.move(ModelState.UNLOADING)
    gone.versions[1].state.move(ModelState.UNAVAILABLE, UNLOADED)
    known.publish()
    known.add(ModelKey("awaited")).is_awaited = True
    known.add(ModelKey("empty"))
    known.add(ModelKey("invalid")).problem = "Invalid argument: nothing in it"
    with pytest.raises(kind) as caught:
        known.find(name, version)
    assert caught.value.message == message


def test_a_model_that_failed_to_load_hints_at_the_cure() -> None:
    known = models()
    failed = known.add(ModelKey("failed"))
    version = ModelVersion("failed", 1, "a test", known.find)
    version.fail(ModelLoadFailed("broken", hint="mend it"))
    failed.versions = {1: version}
    known.publish()
    with pytest.raises(ModelNotReady) as caught:
        known.find("failed", -1)
    assert caught.value.hint == "mend it; `trident validate REPO` lists all problems of a repository"


def test_any_name_may_exist_until_the_repositories_have_been_read() -> None:
    known = models(("m", 1, ModelState.READY))
    known.are_listed = False
    assert known.find("m", -1).version == 1
    with pytest.raises(ModelLoading, match=r"^Server not ready$") as caught:
        known.find("nope", -1)
    assert caught.value.retry_after_s == 1


def test_the_hint_gives_the_reason_why_a_version_is_not_ready() -> None:
    with pytest.raises(ModelNotReady) as caught:
        models(("m", 7, ModelState.UNAVAILABLE)).find("m", 7)
    assert caught.value.hint == "version 7 is UNAVAILABLE: Internal: broken"


def test_a_model_is_ready_if_each_version_is_ready_or_unloaded() -> None:
    (model,) = models(("m", 1, ModelState.READY), ("m", 2, ModelState.READY)).all()
    assert model.is_ready
    model.versions[1].state.move(ModelState.UNLOADING)
    assert model.is_ready
    model.versions[1].state.move(ModelState.UNAVAILABLE, UNLOADED)
    assert model.is_ready
    (failed,) = models(("m", 1, ModelState.UNAVAILABLE)).all()
    assert not failed.is_ready


def test_a_model_without_versions_is_unready_if_it_was_required_at_start() -> None:
    model = empty().add(ModelKey("m"))
    assert model.is_ready
    model.required = True
    assert not model.is_ready


def test_the_models_are_listed_by_name() -> None:
    known = models(("b", 2, ModelState.READY), ("b", 1, ModelState.READY), ("a", 1, ModelState.LOADING))
    assert [(v.name, v.version) for v in known.versions()] == [("a", 1), ("b", 1), ("b", 2)]
    assert known.add(ModelKey("a")) is known.all()[0]
