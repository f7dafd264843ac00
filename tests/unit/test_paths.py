"""Paths from a configuration stay inside the model directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.config.paths import is_plain, path_inside


def test_a_plain_path_leads_nowhere_by_itself() -> None:
    assert all(is_plain(path) for path in ("model.onnx", "a/b", "..a/b..", "./a", ""))
    assert not any(is_plain(path) for path in ("/a", "..", "../a", "a/../b", "a/..", "a\0b"))


def test_a_path_inside_is_resolved(tmp_path: Path) -> None:
    assert path_inside(tmp_path, "labels.txt") == tmp_path.resolve() / "labels.txt"
    assert path_inside(tmp_path, "warmup/../labels.txt") == tmp_path.resolve() / "labels.txt"


@pytest.mark.parametrize("relative", ["../x", "/etc/passwd", "a/../../x", "a\0b"])
def test_a_path_outside_is_none(tmp_path: Path, relative: str) -> None:
    assert path_inside(tmp_path, relative) is None


def test_a_link_that_leads_outside_is_none(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "link").symlink_to(tmp_path / "secret")
    assert path_inside(model, "link") is None


def test_links_in_a_circle_are_none(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert path_inside(tmp_path, "a") is None
