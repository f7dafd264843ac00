from __future__ import annotations

from pathlib import Path

from trident.core.backends.onnxruntime.providers import missing_library


def test_the_library_that_a_provider_lacks_is_named(tmp_path: Path) -> None:
    assert "libonnxruntime_providers_cuda.so" in missing_library("CUDAExecutionProvider", tmp_path)
    assert missing_library("CPUExecutionProvider", tmp_path) == ""
