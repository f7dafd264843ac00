"""The folder `trident` has links to the folders of the tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.project import ROOT


def test_the_package_links_to_every_folder_of_the_product() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "trident").iterdir() if path.is_symlink()}
    assert links == {name: Path("..", name) for name in ("core", "adapters", "app", "tools")}


def test_checkout_with_text_files_instead_of_links_explains_the_fix(tmp_path: Path) -> None:
    package = tmp_path / "trident"
    package.mkdir()
    (package / "__init__.py").write_bytes((ROOT / "trident" / "__init__.py").read_bytes())
    (package / "app").write_text("../app")
    ended = subprocess.run(
        [sys.executable, "-S", "-c", "import trident"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert "ImportError: this checkout has text files where the folder `trident` has links" in ended.stderr
