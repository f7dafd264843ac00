"""Parsing of a request: its version, its headers, the default model, and the classes of an output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fake_engine import FakeEngine
from trident.core.errors import ConfigInvalid, InvalidRequest, ModelCold, ModelLoading, ModelNotFound, ModelNotReady
from trident.core.frontend.bridge import ThreadBridge
from trident.core.frontend.classification import LARGEST_ITEM, classify, top_indices
from trident.core.frontend.default_model import DefaultModel
from trident.core.frontend.request import header_pattern
from trident.core.inference.request import version_number
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import BY_NAME, Array
from trident.core.lifecycle.state import REGISTERED, IndexEntry, Phase, ServingPhase


@pytest.mark.parametrize("text", ["²", "9" * 100_000])
def test_invalid_versions_are_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        version_number(text)
    assert refused.value.message.startswith(f"failed to get model version from specified version string '{text}' (")


def test_header_patterns_ignore_case_and_take_linear_time() -> None:
    pattern = header_pattern("http-header-forward-pattern", "^x-team")
    assert pattern is not None
    assert pattern.matches("X-Team-Name")
    found = header_pattern("http-header-forward-pattern", "^(a|aa)+$")
    assert found is not None
    assert not found.matches("a" * 10_000 + "!")


def test_empty_header_pattern_forwards_nothing_and_invalid_is_refused() -> None:
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


class OnDemand(FakeEngine):
    """Models that are loaded when something asks for them; it notes the loads."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.registered = names
        self.loads: list[str] = []

    def repository_index(self, ready_only: bool) -> list[IndexEntry]:
        return [] if ready_only else [IndexEntry(name=name, reason=REGISTERED) for name in self.registered]

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        raise ModelCold("it is registered") if name in self.registered else ModelNotFound("it is not there")

    def model(self, name: str, version: int = -1) -> Any:
        self.loads.append(name)
        self.versions = {name: (1,)}
        return super().model(name, version)


def test_a_probe_loads_no_model_on_demand_and_the_only_one_is_found() -> None:
    engine = OnDemand("a")
    for name, ready in (("", True), ("a", True), ("other", False)):
        assert DefaultModel(engine, ThreadBridge(), name, "the cure", on_demand=True).is_ready() is ready
    assert engine.loads == []
    assert DefaultModel(engine, ThreadBridge(), "", "the cure", on_demand=True).find().spec.name == "a"
    assert engine.loads == ["a"]
    several = DefaultModel(OnDemand("a", "b"), ThreadBridge(), "", "the cure", on_demand=True)
    with pytest.raises(ConfigInvalid, match="there are several models: a, b"):
        several.find()


def default_of(engine: Index, name: str = "") -> DefaultModel:
    return DefaultModel(engine, ThreadBridge(), name, "the cure")


def test_only_model_is_found_once_and_again_after_its_unload() -> None:
    engine = Index("a")
    default = default_of(engine)
    assert [default.find().spec.name, default.find().spec.name] == ["a", "a"]
    assert engine.looks == 1
    engine.versions = {"b": (1,)}
    assert default.find().spec.name == "b"


def test_no_default_model_exists_without_models() -> None:
    with pytest.raises(ModelNotReady, match="no model is loaded"):
        default_of(Index()).find()
    engine = Index("a")
    engine.serving = ServingPhase(name=Phase.LOADING, done=1, total=2)
    with pytest.raises(ModelNotReady, match="still being loaded"):
        default_of(engine).find()
    engine.serving = ServingPhase(name=Phase.READY)
    assert default_of(engine).find().spec.name == "a"


@pytest.mark.parametrize("names", [(), ("a",)], ids=["none loaded yet", "one of several loaded"])
def test_default_model_is_unknown_until_a_restarted_engine_reports(names: tuple[str, ...]) -> None:
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


# --- classification


def output(values: object, datatype: str = "FP32") -> OutputTensor:
    array = np.array(values, dtype=BY_NAME[datatype].dtype)
    return OutputTensor("OUT", datatype, array.shape, array)


@pytest.mark.parametrize(("shape", "expected"), [((0, 4), (0, 2)), ((2, 0), (2, 0)), ((3,), (3, 1))])
def test_classify_handles_empty_and_scalar_shapes(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert classify(output(np.zeros(shape)), 2, 8, ()).array.shape == expected


@pytest.mark.parametrize(
    ("values", "datatype", "texts"),
    [
        ([2**64 - 1, 0], "UINT64", [b"18446744073709551615:0", b"0:1"]),
        ([-(2**63), 2**63 - 1], "INT64", [b"9223372036854775807:1", b"-9223372036854775808:0"]),
        ([-128, 127], "INT8", [b"127:1", b"-128:0"]),
        ([float("nan"), float("-inf")], "FP32", [b"-inf:1", b"nan:0"]),
        ([1e20, 0.1], "FP64", [b"100000000000000000000.000000:0", b"0.100000:1"]),
    ],
)
def test_classify_formats_extreme_values(values: list[float], datatype: str, texts: list[bytes]) -> None:
    assert classify(output(values, datatype), 2, 0, ()).array.tolist() == texts


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES", "FP16", "BF16"])
def test_unranked_datatypes_are_refused(datatype: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        classify(output([1], datatype), 1, 0, ())
    assert refused.value.message == (f"class result not available for output due to unsupported type '{datatype}'")


def test_items_above_the_limit_are_refused() -> None:
    assert classify(output(np.zeros((2, LARGEST_ITEM), np.float32)), 1, 8, ()).shape == (2, 1)
    with pytest.raises(InvalidRequest, match=r"^classification output tensor too large$"):
        classify(output(np.zeros(LARGEST_ITEM + 1, np.float32)), 1, 0, ())


def in_order(values: Array) -> list[int]:
    """The indices in the expected order, found with a slow and simple sort: largest first, ties by index, NaN last."""
    return sorted(range(len(values)), key=lambda i: (bool(values[i] != values[i]), -float(values[i]), i))


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, 2.5, float("nan"), float("inf"), float("-inf")]), min_size=1),
    st.integers(1, 10),
)
def test_floats_rank_ties_by_index_and_nan_last(values: list[float], k: int) -> None:
    array = np.array(values, dtype=np.float32)
    found = top_indices(array, min(k, len(values))).tolist()
    nans = [i for i in in_order(array) if np.isnan(array[i])]
    expected = [i for i in in_order(array) if not np.isnan(array[i])] + sorted(nans)
    assert found == expected[: len(found)]
