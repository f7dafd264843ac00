"""Writes docker/requirements-*.lock: the versions that the images install, each with the hashes of its files.

    python docker/lock.py [--upgrade] [build] [cpu] [gpu]

The versions are those of requirements.lock. What only an image installs stays as its lock file has it, until --upgrade.
pip is asked, with the indexes that it is set up for; none of them is written down.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "requirements.lock"
# With the images' interpreter and a C library not newer than Debian 12's.
PYTHON = "3.11"
ARCHITECTURES = ("x86_64", "aarch64")
_GLIBC_MINORS = range(17, 37)
# What compiles the one dependency that has no wheels, gunicorn-h1c. Its build is not isolated, so that hashes hold.
_BUILD = ("setuptools>=77", "wheel")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", re.MULTILINE)


def normalized(name: str) -> str:
    """A distribution's name as the lock files have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path) -> dict[str, str]:
    """Name and version of every distribution in a lock file; empty where there is no such file."""
    return {normalized(name): version for name, version in _PIN.findall(path.read_text())} if path.exists() else {}


def lock_file(target: str) -> Path:
    return ROOT / "docker" / f"requirements-{target}.lock"


def requirements(target: str) -> list[str]:
    """What an image asks for: the project's dependencies with its extra, or what builds them."""
    if target == "build":
        return list(_BUILD)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"][target]]


def render(target: str, versions: Mapping[str, str], hashes: Mapping[str, Iterable[str]]) -> str:
    lines = [
        f"# What the image's stage {target} installs: versions and hashes of files for {' and '.join(ARCHITECTURES)}.",
        "# Written by docker/lock.py from pyproject.toml and requirements.lock.",
    ]
    for name in sorted(versions):
        files = "".join(f" \\\n    --hash=sha256:{each}" for each in sorted(set(hashes[name])))
        lines.append(f"{name}=={versions[name]}{files}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Writes the images' lock files.")
    parser.add_argument("--upgrade", action="store_true", help="newer versions of what only an image installs")
    parser.add_argument("targets", nargs="*", metavar="build|cpu|gpu", default=["build", "cpu", "gpu"])
    given = parser.parse_args(arguments)
    for target in given.targets:
        shared = read_pins(CONSTRAINTS)
        own = {} if given.upgrade else read_pins(lock_file(target))
        versions = _resolve(requirements(target), own | shared)
        files = [_files(versions, architecture) for architecture in ARCHITECTURES]
        hashes = {name: [found[name] for found in files] for name in versions}
        lock_file(target).write_text(render(target, versions, hashes))
        print(f"{lock_file(target).name}: {len(versions)} distributions")
    return 0


def _resolve(wanted: Iterable[str], constraints: Mapping[str, str]) -> dict[str, str]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{name}=={version}\n" for name, version in constraints.items()))
        file.flush()
        report = _pip("--constraint", file.name, *wanted)
    return {normalized(each["metadata"]["name"]): each["metadata"]["version"] for each in report["install"]}


def _files(versions: Mapping[str, str], architecture: str) -> dict[str, str]:
    """The hash of the file that pip takes of each distribution on that architecture."""
    platforms = [f"--platform=manylinux_2_{minor}_{architecture}" for minor in reversed(_GLIBC_MINORS)]
    platforms.append(f"--platform=manylinux2014_{architecture}")
    pins = [f"{name}=={version}" for name, version in versions.items()]
    with tempfile.TemporaryDirectory() as folder:
        there = ["--no-deps", "--implementation=cp", f"--python-version={PYTHON}", f"--target={folder}"]
        report = _pip(*there, *platforms, *pins)
    return {
        normalized(each["metadata"]["name"]): each["download_info"]["archive_info"]["hashes"]["sha256"]
        for each in report["install"]
    }


def _pip(*arguments: str) -> Any:
    """pip's own report of an installation that does not take place. Raises CalledProcessError, with its text shown."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report=-"]
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
