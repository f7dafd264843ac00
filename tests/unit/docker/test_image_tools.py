"""The package as an image has it: of tools/ the files that docker/Dockerfile copies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docker.size import TOOLS
from tests.project import ROOT


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    package = folder / "trident"
    (package / "tools").mkdir(parents=True)
    for name in ("__init__.py", "core", "adapters", "app"):
        (package / name).symlink_to(ROOT / "trident" / name)
    for name in TOOLS.findall((ROOT / "docker" / "Dockerfile").read_text()):
        (package / name).symlink_to(ROOT / name)
    return folder


def run(image: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trident.app", *arguments],
        env={**os.environ, "PYTHONPATH": str(image)},
        cwd=image,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_image_lists_and_runs_the_commands_that_it_has(image: Path) -> None:
    listed = {
        line.split("trident ")[1].split()[0] for line in run(image, "--help").stdout.splitlines() if "   " in line
    }
    assert listed == {"serve", "validate", "doctor", "version", "--help"}
    assert "--format=text|json" in run(image, "validate", "--help").stdout
    assert "cores" in run(image, "doctor").stdout
    assert run(image, "validate", str(ROOT / "deploy" / "models")).returncode == 0


@pytest.mark.parametrize("arguments", [["bench", "simple"], ["emulate", "--help"]])
def test_image_explains_where_missing_commands_are(image: Path, arguments: list[str]) -> None:
    ended = run(image, *arguments)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"error: `trident {arguments[0]}` is not part of this image, which serves models\n"
        "hint: install the project where you work with models: pip install '.[cpu]' in the checkout, or with a wheel's "
        "file name in place of the dot\n"
    )


def test_image_does_not_import_the_served_file(image: Path) -> None:
    ended = run(image, "serve", str(ROOT / "deploy/models/simple/1/model.onnx"))
    assert ended.returncode == 1
    assert "`trident import` is not part of this image" in ended.stderr
