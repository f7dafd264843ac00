"""Paths from a configuration stay inside the model directory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trident.core.config.problem import is_plain, path_inside
from trident.core.config.schema import ModelConfig
from trident.core.repository.repository import ModelDirectory, read_labels


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with `real/labels.txt`, beside a file outside of it."""
    model = tmp_path / "model"
    (model / "real").mkdir(parents=True)
    (model / "real" / "labels.txt").touch()
    (tmp_path / "secret").touch()
    return model


def test_plain_path_stays_within_a_directory() -> None:
    assert all(is_plain(path) for path in ("model.onnx", "a/b", "..a/b..", "./a", ""))
    assert not any(is_plain(path) for path in ("/a", "..", "../a", "a/../b", "a/..", "a\0b"))


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


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A model directory that is reachable only through another mount namespace, as with a KServe modelcar."""
    mount = tmp_path / "mount"
    mount.mkdir()
    script = 'mount -t tmpfs none "$0" && cd "$0" && mkdir m && echo cat > m/real.txt && echo ready && exec sleep 600'
    command = ["unshare", "--mount", "sh", "-c", script, str(mount)]
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        try:
            assert other.stdout is not None
            if other.stdout.readline() != b"ready\n":
                pytest.skip("no mount namespaces here")
            link = tmp_path / "models"
            link.symlink_to(f"/proc/{other.pid}/root{mount}")
            yield link / "m"
        finally:
            other.kill()


def test_directory_in_another_mount_namespace_is_usable(elsewhere: Path) -> None:
    assert not elsewhere.resolve().exists()
    (elsewhere / "labels.txt").symlink_to("real.txt")
    (elsewhere / "out.txt").symlink_to("..")
    assert path_inside(elsewhere, "labels.txt") == elsewhere / "labels.txt"
    assert path_inside(elsewhere, "out.txt") is None
    config = ModelConfig()
    config.output.add(name="OUT", label_filename="labels.txt")
    assert read_labels(ModelDirectory("m", elsewhere), config) == {"OUT": ("cat",)}
