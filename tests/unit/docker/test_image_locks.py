"""docker/requirements-*.lock: every package of an image, in the version of requirements.lock, with hashes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement

from docker.lock import ARCHITECTURES, CONSTRAINTS, lock_file, normalized, read_pins, render, requirements

IMAGES = ("cpu", "gpu")
LOCKS = ("build", *IMAGES)


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
    assert missing(target, read_pins(lock_file(target)), requirements(target)) == []


def test_missing_requirement_is_found() -> None:
    pins = read_pins(lock_file("cpu"))
    without = {name: version for name, version in pins.items() if name != "jinja2"}
    assert any("jinja2" in each.lower() for each in missing("cpu", without, requirements("cpu")))
    assert missing("cpu", {**pins, "flask": "1.0"}, requirements("cpu"))


@pytest.mark.parametrize("target", LOCKS)
def test_locked_versions_are_the_tested_ones(target: str) -> None:
    tested = read_pins(CONSTRAINTS)
    pins = read_pins(lock_file(target))
    shared = pins.keys() & tested.keys()
    assert shared
    assert {name: pins[name] for name in shared} == {name: tested[name] for name in shared}


def test_image_has_only_tested_packages_except_its_own() -> None:
    tested = read_pins(CONSTRAINTS)
    assert read_pins(lock_file("cpu")).keys() <= tested.keys()
    own = read_pins(lock_file("gpu")).keys() - tested.keys()
    assert "onnxruntime-gpu" in own
    assert {name for name in own if not name.startswith("nvidia-")} == {"onnxruntime-gpu"}


def test_gpu_image_has_the_same_onnx_runtime() -> None:
    assert read_pins(lock_file("gpu"))["onnxruntime-gpu"] == read_pins(lock_file("cpu"))["onnxruntime"]
    assert "onnxruntime" not in read_pins(lock_file("gpu"))


@pytest.mark.parametrize("target", LOCKS)
def test_pins_have_hashes_and_lock_files_name_no_index(target: str) -> None:
    text = lock_file(target).read_text()
    assert not re.search(r"https?:|--index|--find-links|file:", text)
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(read_pins(lock_file(target)))
    for entry in entries:
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry)
        assert 1 <= len(hashes) <= len(ARCHITECTURES), entry


def test_lock_file_is_written_in_one_order() -> None:
    text = render("cpu", {"b": "2", "a": "1"}, {"b": ["y", "x", "x"], "a": ["z", "z"]})
    pins = "a==1 \\\n    --hash=sha256:z\nb==2 \\\n    --hash=sha256:x \\\n    --hash=sha256:y\n"
    assert text.endswith(f"\n{pins}")
