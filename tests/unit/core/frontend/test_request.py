"""What a request asks for: its version, its headers, and the model if it names none."""

from __future__ import annotations

import pytest

from tests.unit.fake_engine import FakeEngine
from trident.core.errors import ConfigInvalid, InvalidRequest, ModelLoading, ModelNotReady
from trident.core.frontend.bridge import ThreadBridge
from trident.core.frontend.request import DefaultModel, header_pattern, version_number
from trident.core.lifecycle.state import IndexEntry, Phase, ServingPhase


@pytest.mark.parametrize("text", ["abc", "-1", "1.0", "²", str(2**63), "9" * 100_000, "0", "000"])
def test_invalid_versions_are_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        version_number(text)
    other = f"failed to get model version from specified version string '{text}' (details: stol), "
    zero = f"invalid model version specified '{text}' , "
    start = other if text.strip("0") else zero
    assert refused.value.message == start + "version should be an integral value > 0"


def test_header_patterns_ignore_case_and_take_linear_time() -> None:
    pattern = header_pattern("http-header-forward-pattern", "^x-team")
    assert pattern is not None
    assert pattern.matches("X-Team-Name")
    found = header_pattern("http-header-forward-pattern", "^(a|aa)+$")
    assert found is not None
    assert not found.matches("a" * 10_000 + "!")


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [("(?-i)^X-", "X-a", "x-a"), (r"^\pL+\z", "team", "x-team"), (r"\Qa.b\E", "A.B", "aXb"), (r"^a\C$", "ab", "a")],
)
def test_header_patterns_have_the_syntax_of_re2(pattern: str, matching: str, other: str) -> None:
    found = header_pattern("http-header-forward-pattern", pattern)
    assert found is not None
    assert (found.matches(matching), found.matches(other), found.matches(matching)) == (True, False, True)


def test_an_empty_header_pattern_forwards_nothing_and_an_invalid_one_names_its_option() -> None:
    assert header_pattern("http-header-forward-pattern", "") is None
    with pytest.raises(ConfigInvalid, match="--grpc-header-forward-pattern is not a regular expression: '\\(': "):
        header_pattern("grpc-header-forward-pattern", "(")


def test_the_token_header_is_never_forwarded_when_tokens_are_required() -> None:
    for hides_token in (True, False):
        pattern = header_pattern("http-header-forward-pattern", ".*", hides_token=hides_token)
        assert pattern is not None
        assert pattern.matches("Authorization") is not hides_token
        assert pattern.matches("X-Authorization")


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
