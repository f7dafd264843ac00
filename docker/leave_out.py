"""Removes the files of an installation that no server needs at run time.

    python leave_out.py SITE_PACKAGES

Runs while an image is built and in docker/size.py, so that both agree. Needs only the standard library.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple


class LeftOut(NamedTuple):
    """A pattern below site-packages, and who would need the matching files."""

    pattern: str
    reason: str


LEFT_OUT = (
    LeftOut("**/tests", "the dependencies' own tests"),
    LeftOut("**/*.pyi", "type checkers"),
    LeftOut("**/*.pyx", "compilers: sources of extension modules"),
    LeftOut("**/*.pxd", "compilers: sources of extension modules"),
    LeftOut("**/*.c", "compilers: sources of extension modules"),
    LeftOut("**/*.cpp", "compilers: sources of extension modules"),
    LeftOut("**/*.h", "compilers: headers"),
    LeftOut("**/*.hpp", "compilers: headers"),
    LeftOut("**/*.a", "linkers: static libraries"),
    LeftOut("nvidia/**/include", "compilers: headers"),
    LeftOut("boto3/examples", "readers of boto3's documentation"),
    LeftOut("onnxruntime/datasets", "examples"),
    LeftOut("onnxruntime/quantization", "authors of models"),
    LeftOut("onnxruntime/tools", "authors of models"),
    LeftOut("onnxruntime/transformers", "authors of models"),
    LeftOut("torch/include", "compilers: headers"),
    LeftOut("torch/testing/_internal/py312_intrinsics.py", "Python 3.12, whose syntax it has"),
    LeftOut("torch/test", "the dependencies' own tests"),
    LeftOut("torch/bin/*[Tt]est*", "the dependencies' own tests"),
    LeftOut("torch/bin/protoc*", "compilers: protocol buffers"),
    LeftOut("clang/native", "compilers: libclang, which TensorFlow's wheel asks for and does not load"),
    LeftOut("tensorflow/include", "compilers: headers"),
    LeftOut("openvino/libs/libopenvino_intel_gpu_plugin.so", "Intel's GPUs, on which no model runs"),
    LeftOut("openvino/libs/cache.json", "Intel's GPUs, on which no model runs"),
    LeftOut("openvino/libs/libopenvino_intel_npu*.so", "Intel's NPUs, on which no model runs"),
    LeftOut("nvidia/**/libnvblas.so.*", "programs that call BLAS; ONNX Runtime calls cuBLAS"),
    LeftOut("nvidia/**/libcufftw.so.*", "programs that call FFTW; ONNX Runtime calls cuFFT"),
)
_TENSORRT_PROVIDER = LeftOut(
    "onnxruntime/capi/libonnxruntime_providers_tensorrt.so", "TensorRT, which is not installed"
)
# Of the 400 services that boto3 knows: storage and the sources of credentials.
KEPT_SERVICES = frozenset({"s3", "signin", "sso", "sso-oidc", "sts"})
SERVICES_REASON = "callers of AWS services other than S3 and the sources of credentials"


def leave_out(site_packages: Path) -> dict[str, int]:
    """Remove all LEFT_OUT files and services, and ONNX Runtime's provider for a TensorRT that is not there.

    Returns the saved bytes by reason.
    """
    saved: dict[str, int] = {}
    has_tensorrt = (site_packages / "tensorrt_libs").is_dir()
    for pattern, reason in LEFT_OUT if has_tensorrt else (*LEFT_OUT, _TENSORRT_PROVIDER):
        for path in list(site_packages.glob(pattern)):
            saved[reason] = saved.get(reason, 0) + _remove(path)
    services = site_packages / "botocore" / "data"
    for path in list(services.iterdir()) if services.is_dir() else []:
        if path.is_dir() and path.name not in KEPT_SERVICES:
            saved[SERVICES_REASON] = saved.get(SERVICES_REASON, 0) + _remove(path)
    return saved


def _remove(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        size = sum(each.lstat().st_size for each in path.rglob("*") if not each.is_dir())
        shutil.rmtree(path)
        return size
    if not path.is_symlink() and not path.exists():
        return 0  # removed with a folder that another pattern matched
    size = path.lstat().st_size
    path.unlink()
    return size


if __name__ == "__main__":
    for why, size in leave_out(Path(sys.argv[1])).items():
        print(f"{size / 1e6:7.1f} MB left out: {why}")
