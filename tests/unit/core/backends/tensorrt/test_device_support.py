from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trident.core.backends.tensorrt.package import device_support


@pytest.mark.parametrize(
    ("source", "framework", "problem"),
    [
        ("__version__ = '10.9.0.34'", "TensorRT 10.9.0.34", ""),
        ("raise ImportError('libnvinfer.so.10: cannot open')", "TensorRT", "libnvinfer.so.10: cannot open"),
        ("raise ModuleNotFoundError('tensorrt')", "TensorRT is not installed (optional)", ""),
    ],
)
def test_what_is_installed(
    source: str, framework: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    found = device_support()
    sys.modules.pop("tensorrt", None)
    assert found.framework == framework
    assert [each.problem for each in found.providers] == [problem] * bool(problem)
