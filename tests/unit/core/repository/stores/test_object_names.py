"""Which names from a storage are refused; an accepted name stays in its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.core.repository.stores.object_store import name_problem, path_problem, paths_problem


@pytest.mark.parametrize(
    "path", ["a", "1/model.onnx", ".hidden/x", "a\\b", "...", "ü/模型.onnx", "x" * 255, "a b", "~"]
)
def test_valid_path_is_accepted(path: str) -> None:
    assert path_problem(path) is None
    assert paths_problem([path]) is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "1/../../x",
        "1//x",
        "1/./x",
        "a\0b",
        "x" * 256,
        "ü" * 128,
        "1/\udcff\ud800",
        "a/..",
    ],
)
def test_invalid_path_is_refused(path: str) -> None:
    assert path_problem(path) is not None
    assert paths_problem(["good", path]) is not None


@pytest.mark.parametrize(
    ("paths", "refused"),
    [
        (["a", "a/b"], True),
        (["a/b/c", "a/b"], True),
        (["a", "a/"], True),
        (["a/b", "a/c", "ab"], False),
        (["1/", "2/x"], False),
        (["1//"], True),
        (["/"], True),
    ],
)
def test_path_that_is_both_file_and_folder_is_refused(paths: list[str], refused: bool) -> None:
    assert (paths_problem(paths) is not None) is refused


def test_model_name_with_a_slash_is_refused() -> None:
    assert name_problem("a/b") is not None


@given(st.text(st.sampled_from("./\\\0aü\ud800"), max_size=12))
def test_accepted_path_stays_inside_its_folder(path: str) -> None:
    if path_problem(path) is None:
        inside = os.path.normpath(Path("/cache/model") / path)
        assert inside == f"/cache/model/{path}"
