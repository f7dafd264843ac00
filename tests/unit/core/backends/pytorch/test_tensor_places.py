"""The names of the tensors of packages."""

from __future__ import annotations

from typing import Any

import pytest

from trident.core.backends.pytorch.stub.tensor_places import named_leaves, places


@pytest.mark.parametrize(
    ("tree", "name", "leaves"),
    [
        (0, "RESULT", {"RESULT": 0}),
        ([0, 1], "RESULT", {"RESULT[0]": 0, "RESULT[1]": 1}),
        ({"sum": 0, "more": [1, 2]}, "RESULT", {"RESULT[sum]": 0, "RESULT[more][0]": 1, "RESULT[more][1]": 2}),
        ([0, {"key": 1}], "ARGS", {"ARGS[0]": 0, "ARGS[1][key]": 1}),
        ({}, "KWARGS", {}),
    ],
)
def test_leaves_are_named_by_their_way(tree: Any, name: str, leaves: dict[str, int]) -> None:
    assert named_leaves(tree, name) == leaves


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["ARGS[1]", "ARGS[0]"], {"ARGS[1]": 1, "ARGS[0]": 0}),
        (["INPUT__1", "INPUT__0"], {"INPUT__1": 1, "INPUT__0": 0}),
        (["b", "a"], {"b": 1, "a": 0}),
        (["ARGS[0]", "INPUT__1"], {"ARGS[0]": 0, "INPUT__1": 1}),
    ],
)
def test_places_of_names(names: list[str], found: dict[str, int]) -> None:
    assert places(names, {"ARGS[0]": 0, "ARGS[1]": 1}, ("a", "b")) == found


@pytest.mark.parametrize("name", ["c", "INPUT__2", "ARGS[2]"])
def test_a_name_that_means_nothing_is_an_error(name: str) -> None:
    with pytest.raises(KeyError) as raised:
        places([name], {"ARGS[0]": 0, "ARGS[1]": 1}, ("a", "b"))
    assert raised.value.args == (name,)
