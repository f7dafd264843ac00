from __future__ import annotations

import pytest

from tests.unit.fake_engine import FakeEngine
from trident.core.errors import ConfigInvalid, ModelLoading, ModelNotReady
from trident.core.frontend.bridge import ThreadBridge
from trident.core.frontend.default_model import DefaultModel
from trident.core.lifecycle.state import IndexEntry, Phase, ServingPhase


class Index(FakeEngine):
    """The ready models are those in `versions`."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.versions = dict.fromkeys(names, (1, 2))
        self.looks = 0

    def repository_index(self, ready_only: bool) -> list[IndexEntry]:
        assert ready_only
        self.looks += 1
        return [IndexEntry(name=name, version=n) for name, numbers in self.versions.items() for n in numbers]


def default_of(engine: Index, name: str = "") -> DefaultModel:
    return DefaultModel(engine, ThreadBridge(), name, "the cure")


def test_a_named_model_is_used_and_ready_when_it_serves() -> None:
    engine = Index("a", "b")
    assert default_of(engine, "b").find().spec.name == "b"
    assert engine.looks == 0
    engine = Index("a")
    assert default_of(engine).is_ready()
    assert default_of(engine, "a").is_ready()
    assert not default_of(engine, "c").is_ready()


def test_the_only_model_is_looked_for_once_and_again_after_its_unload() -> None:
    engine = Index("a")
    default = default_of(engine)
    assert [default.find().spec.name, default.find().spec.name] == ["a", "a"]
    assert engine.looks == 1
    engine.versions = {"b": (1,)}
    assert default.find().spec.name == "b"


def test_without_a_model_there_is_no_default() -> None:
    with pytest.raises(ModelNotReady, match="no model is loaded"):
        default_of(Index()).find()
    engine = Index("a")
    engine.serving = ServingPhase(name=Phase.LOADING, done=1, total=2)
    with pytest.raises(ModelNotReady, match="still being loaded"):
        default_of(engine).find()
    engine.serving = ServingPhase(name=Phase.READY)
    assert default_of(engine).find().spec.name == "a"


def test_several_models_are_refused_with_a_hint() -> None:
    with pytest.raises(ConfigInvalid, match="several models: a, b") as caught:
        default_of(Index("b", "a")).find()
    assert caught.value.hint == "the cure"
    with pytest.raises(ConfigInvalid, match=r"…$"):
        default_of(Index(*map(str, range(20)))).find()


@pytest.mark.parametrize("names", [(), ("a",)], ids=["none loaded yet", "one of several loaded"])
def test_no_model_is_the_only_one_before_a_restarted_engine_has_said_how_far_it_is(names: tuple[str, ...]) -> None:
    engine = Index(*names)
    engine.serving = ServingPhase(name=Phase.ENGINE_DOWN)
    with pytest.raises(ModelLoading, match="still being loaded"):
        default_of(engine).find()


def test_without_a_name_any_serving_model_is_ready() -> None:
    engine = Index("a", "b")
    default = default_of(engine)
    assert default.is_ready()
    assert default.is_ready()
    assert engine.looks == 1  # the engine is not asked again while that model serves
    engine.versions = {}
    assert not default.is_ready()
    engine.versions = {"b": (1,)}
    assert default.is_ready()
    assert engine.looks == 3
    default.find()
    assert default.is_ready()
    assert engine.looks == 4  # now it is known by name
