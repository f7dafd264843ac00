"""Writes docker/requirements-*.lock and docker/extras: the versions that the images install, with their files' hashes.

    python docker/lock.py [--upgrade] [build] [compile] [cpu] [gpu] [gpu12] [trees] [cpu-torch] …

The versions are those of requirements.lock. Packages that only an image installs keep the versions of its lock file
unless --upgrade is given. pip resolves them with its configured indexes, which are not written to the files. An extra's
file has what the extra adds to its stage, and what it needs in another version; most extras add the same to every
stage. PyTorch for CPUs is not on PyPI: pip must be configured with PyTorch's index for CPUs to lock it.
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
# The images' interpreter; their C library is that of Debian 12.
PYTHON = "3.11"
ARCHITECTURES = ("x86_64", "aarch64")
# The second has CUDA 13, the third CUDA 12.
STAGES = ("cpu", "gpu", "gpu12")
# What these stages install stays in them: the build tools, and what compiles the project.
BUILD_STAGES = ("build", "compile")
# Not `tensorrt`, whose lock files are written by hand: docker/extras/gpu-tensorrt.lock.
EXTRAS = ("azure", "genai", "openvino", "tensorflow", "text", "torch", "trees")
# PyTorch and ONNX Runtime GenAI for GPUs have CUDA 13.
OF_A_STAGE = ("cpu-genai", "cpu-torch", "gpu-genai", "gpu-torch")
# What a target has in place of a package of the same version.
_OTHER_BUILDS = {"gpu-genai": ("onnxruntime-genai", "onnxruntime-genai-cuda")}
# Small, and in every image.
ALWAYS = ("otel", "redis")
# These are locked for one architecture: tensorflow-cpu and ONNX Runtime GenAI for GPUs have no wheels for others,
# PyTorch for CPUs and the last ONNX Runtime of CUDA 12 none on PyPI.
_X86_ONLY = {"tensorflow", "torch", "gpu12", "gpu-genai"}
# It names exact versions of the CUDA wheels, which take the place of the stage's own.
_BRINGS_CUDA = ("torch",)
# The last CUDA 12 and cuDNN are 0.7 GB more, for their kernels for Blackwell, which the image with CUDA 13 is for.
# ONNX Runtime's documentation allows every CUDA 12 and cuDNN 9; docker/probe.py links them.
_SMALLER_CUDA = {
    "gpu12": (
        "nvidia-cublas-cu12<12.7",
        "nvidia-cuda-nvrtc-cu12<12.7",
        "nvidia-cudnn-cu12<9.21",
        "nvidia-cufft-cu12<11.3.1",
        "nvidia-curand-cu12<10.3.8",
        "nvidia-nvjitlink-cu12<12.7",
    )
}
_GLIBC_MINORS = range(17, 37)
# These make the project's wheel. Its build is not isolated, so that hashes apply.
_BUILD = ("setuptools>=77", "wheel")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", re.MULTILINE)


def normalized(name: str) -> str:
    """A distribution's name as the lock files write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path) -> dict[str, str]:
    """The version of every distribution in a lock file, by name; empty if the file does not exist."""
    return {normalized(name): version for name, version in _PIN.findall(path.read_text())} if path.exists() else {}


def targets() -> list[str]:
    """Everything that has a lock file: what builds and what compiles, the stages, and the extras."""
    shared = [extra for extra in EXTRAS if f"cpu-{extra}" not in OF_A_STAGE]
    return [*BUILD_STAGES, *STAGES, *shared, *OF_A_STAGE]


def stage_and_extra(target: str) -> tuple[str, str]:
    """The parts of `cpu-torch`; the extra is empty for a stage. A shared extra is resolved for the stage `cpu`."""
    stage, _, extra = (f"cpu-{target}" if target in EXTRAS else target).partition("-")
    return stage, extra


def lock_file(target: str) -> Path:
    folder = ROOT / "docker"
    return (
        folder / "extras" / f"{target}.lock" if stage_and_extra(target)[1] else folder / f"requirements-{target}.lock"
    )


def architectures(target: str) -> tuple[str, ...]:
    return ARCHITECTURES[:1] if _X86_ONLY & {target, *stage_and_extra(target)} else ARCHITECTURES


def requirements(target: str) -> list[str]:
    """The requirements of an image: the project's dependencies with those of its extras, or of a stage that builds."""
    if target == "build":
        return list(_BUILD)
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if target == "compile":
        return list(pyproject["dependency-groups"]["compile"])
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    stage, extra = stage_and_extra(target)
    wanted = [stage, *ALWAYS, *([extra] if extra else [])]
    name, other = _OTHER_BUILDS.get(target, ("", ""))
    of_extras = (each.replace(name, other) for extra in wanted for each in extras[extra])
    return [*project["dependencies"], *of_extras, *_SMALLER_CUDA.get(target, ())]


def _title(target: str) -> str:
    stage, extra = stage_and_extra(target)
    if target == extra:
        return f"extra {extra}"
    return f"stage {stage}, extra {extra}" if extra else f"stage {stage}"


def render(target: str, versions: Mapping[str, str], hashes: Mapping[str, Iterable[str]]) -> str:
    machines = " and ".join(architectures(target))
    lines = [
        f"# Packages of the images, {_title(target)}: versions and hashes of files for {machines}.",
        "# Written by docker/lock.py from pyproject.toml and requirements.lock.",
    ]
    for name in sorted(versions):
        files = "".join(f" \\\n    --hash=sha256:{each}" for each in sorted(set(hashes[name])))
        lines.append(f"{name}=={versions[name]}{files}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Writes the images' lock files.")
    parser.add_argument("--upgrade", action="store_true", help="newer versions of packages that only an image installs")
    parser.add_argument("targets", nargs="*", metavar="build|compile|cpu|gpu|gpu12|trees|cpu-torch…", default=targets())
    given = parser.parse_args(arguments)
    for target in given.targets:
        own = {} if given.upgrade else read_pins(lock_file(target))
        versions = _added(target, _resolve(requirements(target), own | _constraints(target)))
        files = [_files(versions, architecture) for architecture in architectures(target)]
        hashes = {name: [found[name] for found in files] for name in versions}
        lock_file(target).write_text(render(target, versions, hashes))
        print(f"{lock_file(target).name}: {len(versions)} distributions")
    return 0


def _constraints(target: str) -> dict[str, str]:
    """The versions that `target` may not choose: those of the project, and for an extra those of its stage."""
    shared = read_pins(CONSTRAINTS)
    stage, extra = stage_and_extra(target)
    if not extra:
        return shared
    of_stage = read_pins(lock_file(stage))
    if extra in _BRINGS_CUDA:
        of_stage = {name: version for name, version in of_stage.items() if not name.startswith("nvidia-")}
    if target == "cpu-torch":
        shared["torch"] += "+cpu"
    if target in _OTHER_BUILDS:
        name, other = _OTHER_BUILDS[target]
        shared[other] = shared[name]
    return shared | of_stage


def _added(target: str, versions: Mapping[str, str]) -> dict[str, str]:
    """The packages that an extra adds to its stage or changes there; all of a stage."""
    stage, extra = stage_and_extra(target)
    there = {**read_pins(lock_file(stage)), **read_pins(lock_file("build"))} if extra else {}
    return {name: version for name, version in versions.items() if there.get(name) != version}


def _resolve(wanted: Iterable[str], constraints: Mapping[str, str]) -> dict[str, str]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        # Exactly these: `==` would let a version of another build in, such as PyTorch for CPUs.
        file.write("".join(f"{name}==={version}\n" for name, version in constraints.items()))
        file.flush()
        report = _pip("--constraint", file.name, *wanted)
    return {normalized(each["metadata"]["name"]): each["metadata"]["version"] for each in report["install"]}


def _files(versions: Mapping[str, str], architecture: str) -> dict[str, str]:
    """The hash of the file that pip selects for each distribution on an architecture."""
    platforms = [f"--platform=manylinux_2_{minor}_{architecture}" for minor in reversed(_GLIBC_MINORS)]
    platforms.append(f"--platform=manylinux2014_{architecture}")
    pins = [f"{name}==={version}" for name, version in versions.items()]
    with tempfile.TemporaryDirectory() as folder:
        there = ["--no-deps", "--implementation=cp", f"--python-version={PYTHON}", f"--target={folder}"]
        report = _pip(*there, *platforms, *pins)
    return {
        normalized(each["metadata"]["name"]): each["download_info"]["archive_info"]["hashes"]["sha256"]
        for each in report["install"]
    }


def _pip(*arguments: str) -> Any:
    """pip's report of a dry-run installation. Raises CalledProcessError; pip's error text goes to stderr."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report=-"]
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
