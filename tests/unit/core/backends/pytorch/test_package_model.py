"""What the process of a package loads. It is a process here, too, because it changes its environment."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.project import ROOT

BACKENDS = ROOT / "core" / "backends"
LOAD = """
import sys
import package_model
print(package_model._loaded(sys.argv[1], {}, "cpu")[3])
"""


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class RunsCode:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def loaded(package: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(BACKENDS / name) for name in ("python/stub", "pytorch/stub"))
    # What would allow pickles must not reach the process.
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    command = [sys.executable, "-c", LOAD, str(package)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_pickle_in_a_package_is_never_run(tmp_path: Path) -> None:
    package, changed, trace = tmp_path / "model.pt2", tmp_path / "changed.pt2", tmp_path / "trace"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(Double(), (torch.zeros(2),)), package)
    pickled = io.BytesIO()
    torch.save(([RunsCode(trace)], {}), pickled)
    replaced = 0
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            is_sample = name.endswith("sample_inputs/model.pt")
            new.writestr(name, pickled.getvalue() if is_sample else old.read(name))
            replaced += is_sample
    assert replaced == 1
    assert loaded(package).stdout == "('x',)\n"
    refused = loaded(changed)
    assert refused.returncode != 0
    assert "Weights only load failed" in refused.stderr
    assert not trace.exists()
