"""docker/size.py and docker/leave_out.py: the sizes of the images, and the files left out of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docker import size
from docker.leave_out import KEPT_SERVICES, leave_out
from docker.lock import BUILD_STAGES, STAGES, lock_file, read_pins, targets
from docker.size import BASE_ALLOWANCE, BUDGETS, Sizes, counted, main, read_sizes


def test_every_image_and_extra_has_a_budget() -> None:
    assert sorted(BUDGETS) == sorted(target for target in targets() if target not in BUILD_STAGES)
    sizes: dict[str, Sizes] = {"gpu": {"cuda==2": (10, 0), "numpy==1": (5, 0)}, "gpu-torch": {"cuda==1": (12, 0)}}
    assert counted("gpu-torch", sizes) == 2


@pytest.mark.parametrize("image", BUDGETS)
def test_sizes_cover_every_locked_package(image: str) -> None:
    pins = {f"{name}=={version}" for name, version in read_pins(lock_file(image)).items()}
    assert read_sizes()[image].keys() == pins, "docker/size.py --measure"
    assert all(kept > 0 for kept, _ in read_sizes()[image].values())


@pytest.mark.parametrize("image", BUDGETS)
def test_image_is_within_its_budget(image: str) -> None:
    least = BASE_ALLOWANCE if image in STAGES else 0
    assert least < counted(image, read_sizes()) < BUDGETS[image]


def test_image_over_its_budget_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes: dict[str, Sizes] = {"cpu": {"big==1": (BUDGETS["cpu"], 0)}, "gpu": {"small==1": (1, 5)}}
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    monkeypatch.setattr(size, "SIZES", tmp_path / "sizes.json")
    assert main([]) == 1
    printed = capsys.readouterr()
    assert printed.err == "the cpu image is over its budget\n"
    assert "big==1" in printed.out


TENSORRT_PROVIDER = "onnxruntime/capi/libonnxruntime_providers_tensorrt.so"


def test_leave_out_retains_the_provider_of_an_installed_tensorrt(tmp_path: Path) -> None:
    for name in (TENSORRT_PROVIDER, "tensorrt_libs/libnvinfer.so.10"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert leave_out(tmp_path) == {}


def test_leave_out_removes_only_unneeded_files(tmp_path: Path) -> None:
    gone = [
        "numpy/linalg/tests/test_linalg.py",
        "numpy/_core/include/numpy/arrayobject.h",
        "numpy/__init__.pyi",
        "gevent/greenlet.pyx",
        "botocore/data/ec2/2016-11-15/service-2.json.gz",
        "onnxruntime/transformers/optimizer.py",
        TENSORRT_PROVIDER,
        "nvidia/cu13/lib/libnvblas.so.13",
        "torch/bin/test_jit",
        "openvino/libs/libopenvino_intel_gpu_plugin.so",
    ]
    kept = [
        "numpy/testing/__init__.py",
        "numpy/__init__.py",
        "botocore/data/endpoints.json",
        *(f"botocore/data/{service}/service-2.json.gz" for service in KEPT_SERVICES),
        "onnxruntime/capi/libonnxruntime_providers_cuda.so",
        "nvidia/cu13/lib/libcublas.so.13",
        "torch/bin/torch_shm_manager",
        "openvino/libs/libopenvino_intel_cpu_plugin.so",
    ]
    for name in (*gone, *kept):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("12345")
    saved = leave_out(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(kept)
    assert sum(saved.values()) == 5 * len(gone)
    assert leave_out(tmp_path) == {}
