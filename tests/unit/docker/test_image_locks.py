"""docker/requirements-*.lock and docker/extras: every package of an image, in the tested version, with hashes."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from docker.lock import (
    ALWAYS,
    CONSTRAINTS,
    EXTRAS,
    ROOT,
    STAGES,
    architectures,
    lock_file,
    normalized,
    read_pins,
    render,
    requirements,
    stage_and_extra,
    targets,
)

LOCKS = targets()


def pins_of_image(target: str) -> dict[str, str]:
    """The packages of a stage; with an extra also its own, some of which replace the stage's.

    setuptools, which extras ask for, is there while they are installed and removed at the end.
    """
    stage, extra = stage_and_extra(target)
    build = {"setuptools": read_pins(lock_file("build"))["setuptools"]} if extra else {}
    return build | read_pins(lock_file(stage)) | read_pins(lock_file(target))


def missing(target: str, pins: dict[str, str], wanted: Iterable[str]) -> list[str]:
    """The direct and indirect requirements of `wanted` that the pins do not satisfy."""
    left, seen, found = [Requirement(each) for each in wanted], set(), []
    while left:
        requirement = left.pop()
        name = normalized(requirement.name)
        if name not in pins or not requirement.specifier.contains(pins[name]):
            found.append(f"{target}: {requirement}")
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        try:
            asked = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # installed in an image only
        extras = requirement.extras or {""}
        left += [
            each
            for each in map(Requirement, asked)
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return found


@pytest.mark.parametrize("target", LOCKS)
def test_lock_file_has_every_requirement(target: str) -> None:
    assert missing(target, pins_of_image(target), requirements(target)) == []


@pytest.mark.parametrize("target", LOCKS)
def test_locked_versions_are_the_tested_ones(target: str) -> None:
    tested = read_pins(CONSTRAINTS)
    # ONNX Runtime GenAI for GPUs has another name.
    pins = {name.removesuffix("-cuda"): version for name, version in read_pins(lock_file(target)).items()}
    shared = pins.keys() & tested.keys()
    assert shared
    # A build for CPUs has a version of its own: 2.13.0+cpu.
    assert {name: pins[name].partition("+")[0] for name in shared} == {name: tested[name] for name in shared}


def test_image_has_only_tested_packages_except_its_own() -> None:
    tested = read_pins(CONSTRAINTS)
    assert read_pins(lock_file("cpu")).keys() <= tested.keys()
    own = read_pins(lock_file("gpu")).keys() - tested.keys()
    assert "onnxruntime-gpu" in own
    assert {name for name in own if not name.startswith("nvidia-")} == {"onnxruntime-gpu"}


def test_shared_extras_fit_every_stage() -> None:
    for stage in STAGES:
        for extra in set(EXTRAS) & set(LOCKS):
            there = read_pins(lock_file(stage))
            assert not {
                name for name, version in read_pins(lock_file(extra)).items() if there.get(name, version) != version
            }


@pytest.mark.parametrize("target", LOCKS)
def test_pins_have_hashes_and_lock_files_name_no_index(target: str) -> None:
    text = lock_file(target).read_text()
    assert not re.search(r"https?:|--index|--find-links|file:", text)
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(read_pins(lock_file(target)))
    for entry in entries:
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry)
        assert 1 <= len(hashes) <= len(architectures(target)), entry


def test_every_extra_can_be_in_an_image_and_repeats_nothing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    no_image = {"docs", "scan", "test", "tools", "train"}
    assert {*STAGES, *EXTRAS, *ALWAYS, *no_image, "tensorrt"} == project["optional-dependencies"].keys()
    for target in LOCKS:
        stage, extra = stage_and_extra(target)
        if extra:
            assert not read_pins(lock_file(target)).items() & read_pins(lock_file(stage)).items(), target


def test_pytorch_is_that_for_cpus_in_the_cpu_image_alone() -> None:
    assert read_pins(lock_file("cpu-torch"))["torch"].endswith("+cpu")
    assert "+" not in read_pins(lock_file("gpu-torch"))["torch"]


# --- docker/extras/install.sh, with an interpreter that only notes its arguments


def installed(tmp_path: Path, stage: str, extras: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    python.chmod(0o755)
    command = ["docker/extras/install.sh", str(tmp_path), stage, extras]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("stage", "extras", "files"),
    [
        ("cpu", "trees, redis,openvino", ["trees.lock", "openvino.lock"]),
        ("cpu", "", []),
        ("cpu", "genai,torch", ["cpu-genai.lock", "cpu-torch.lock"]),
        ("gpu", "genai,torch", ["gpu-genai.lock", "gpu-torch.lock"]),
    ],
)
def test_each_extra_is_installed_from_its_own_lock_file(
    tmp_path: Path, stage: str, extras: str, files: list[str]
) -> None:
    done = installed(tmp_path, stage, extras)
    assert done.returncode == 0, done.stderr
    assert [Path(line.split()[-1]).name for line in done.stdout.splitlines()] == files
    assert all("--require-hashes" in line and "--no-deps" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize(("stage", "extra"), [("cpu", "pytorch"), ("gpu12", "torch")])
def test_unknown_extra_aborts_the_build_and_lists_the_extras(tmp_path: Path, stage: str, extra: str) -> None:
    done = installed(tmp_path, stage, f"trees,{extra}")
    assert done.returncode == 1
    assert f"the {stage} image has no extra '{extra}', only: azure " in done.stderr


@pytest.mark.parametrize("stage", ["cpu", "gpu"])
def test_failed_installation_ends_the_build(tmp_path: Path, stage: str) -> None:
    done = installed(tmp_path, stage, "torch", status=1)
    assert done.returncode == 1
    assert ("PIP_EXTRA_INDEX_URL" in done.stderr) == (stage == "cpu")


def test_lock_file_is_written_in_one_order() -> None:
    text = render("cpu", {"b": "2", "a": "1"}, {"b": ["y", "x", "x"], "a": ["z", "z"]})
    pins = "a==1 \\\n    --hash=sha256:z\nb==2 \\\n    --hash=sha256:x \\\n    --hash=sha256:y\n"
    assert text.endswith(f"\n{pins}")
