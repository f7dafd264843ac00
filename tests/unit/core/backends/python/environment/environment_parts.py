"""Small real environments, archives and packages, all made without a network."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

# As conda-pack's script finds its folder and runs the scripts of packages.
_ACTIVATE = """\
folder="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export CONDA_PREFIX="$folder"
PATH="$folder/bin:$PATH"
for script in "$folder"/etc/conda/activate.d/*.sh; do . "$script"; done
echo "activated"
"""
FAKE_NUMPY = "99.0"
"""The version of the numpy that these environments have: a module that only has a version."""


def conda_folder(folder: Path) -> Path:
    """An environment with a `bin/activate` as conda-pack writes it. Its interpreter is the one of the test."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "activate").write_text(_ACTIVATE)
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    scripts = folder / "etc" / "conda" / "activate.d"
    scripts.mkdir(parents=True)
    (scripts / "package.sh").write_text('export PACKAGE_HOME="$CONDA_PREFIX/share/two  words"\n')
    return folder


def archive_of(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in sorted(folder.iterdir()):
            tar.add(member, member.name)
    return path


def virtual_environment(folder: Path, *, numpy: bool = True) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    if numpy:
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "numpy.py").write_text(f'__version__ = "{FAKE_NUMPY}"\n')
    return folder


def wheel(folder: Path, name: str, version: str, code: str = "") -> Path:
    """A package with one module, as pip installs it."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f'__version__ = "{version}"\n{code}',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in files))
    return path
