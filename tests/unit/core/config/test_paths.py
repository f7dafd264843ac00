"""Paths from a configuration stay inside the model directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.core.config.problem import path_inside


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with `real/labels.txt`, beside a file outside of it."""
    model = tmp_path / "model"
    (model / "real").mkdir(parents=True)
    (model / "real" / "labels.txt").touch()
    (tmp_path / "secret").touch()
    return model


@pytest.mark.parametrize("relative", ["real/labels.txt", "./real//labels.txt", "../model/real/labels.txt"])
def test_path_that_leads_inside_is_returned(model: Path, relative: str) -> None:
    assert path_inside(model, relative) == model / relative


def test_missing_and_absolute_paths_may_lead_inside(model: Path) -> None:
    assert path_inside(model, "none/labels.txt") == model / "none" / "labels.txt"
    assert path_inside(model, "x" * 300) == model / ("x" * 300)
    assert path_inside(model, f"{model}//real/labels.txt") == model / "real" / "labels.txt"
    assert path_inside(model, f"{model}/../secret") is None


@pytest.mark.parametrize("relative", ["../x", "/etc/passwd", "a/../../x", "a\0b", "../secret", "..", "real/../.."])
def test_path_outside_gives_none(model: Path, relative: str) -> None:
    assert path_inside(model, relative) is None


@pytest.mark.parametrize(
    "target",
    ["real", "./real/../real/", "../model/real", "ROOT/model/real", "ROOT/alias/real", "ROOT/model/../model/real"],
)
def test_link_that_stays_inside_is_followed(model: Path, target: str) -> None:
    (model.parent / "alias").symlink_to("model")
    (model / "second").symlink_to(target.replace("ROOT", str(model.parent)))
    (model / "first").symlink_to("second")
    assert path_inside(model, "first/labels.txt") == model / "first" / "labels.txt"


@pytest.mark.parametrize("target", ["../secret", "ROOT/secret", "real/../../secret", "/", "..", "ROOT/alias/../secret"])
def test_link_that_leads_outside_gives_none(model: Path, target: str) -> None:
    (model.parent / "alias").symlink_to("model")
    (model / "link").symlink_to(target.replace("ROOT", str(model.parent)))
    (model / "first").symlink_to("link")
    assert path_inside(model, "first") is None
