"""A machine with GPUs for the processes of a server: all of NVIDIA's part, on memory of the CPU.

Python runs `start` when a process begins: from then on ctypes loads the fake driver and its management library,
TensorRT is the fake one, and ONNX Runtime takes the CPU for a GPU. The state of the machine is a file, so that a test
can change it while the server runs.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.project import ROOT

STATE = "GPU_MACHINE"
UUIDS = ("GPU-aa11", "GPU-bb22")
MIG = "MIG-41c8"
_SITE = "from tests.contract.frameworks.gpu_machine import start\nstart()\n"
_TENSORRT = """
from tests.unit.core.backends.tensorrt.fake_tensorrt import *
from tests.unit.core.backends.tensorrt.fake_tensorrt import __version__
"""


class GpuMachine:
    """`environment` makes a server's process one on it. `folder` has its files."""

    def __init__(self, folder: Path, **state: Any) -> None:
        """`state` is as in `change`, which it is until then."""
        self._state: dict[str, Any] = {
            "devices": 1,
            "nvml": True,
            "driver": "580.65.06",
            "cuda": 13000,
            "failures": {},
            "at_session": "",
            "at_run": "",
            "from_rows": 1,
        }
        self._file = folder / "machine.json"
        (folder / "sitecustomize.py").write_text(_SITE)
        (folder / "tensorrt.py").write_text(_TENSORRT)
        path = os.pathsep.join([str(folder), str(ROOT)])
        self.environment = {**os.environ, "PYTHONPATH": path, STATE: str(self._file)}
        self.change(**state)

    def change(self, **state: Any) -> None:
        """`failures` are statuses of the driver's calls, `at_session` and `at_run` those of `Gpu`. `cuda` and `driver`
        are what the management library says, if there is one: `nvml`.
        """
        self._state |= state
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps(self._state))
        written.replace(self._file)


def start() -> None:
    load: Any = ctypes.CDLL
    libraries: dict[str, Any] = {}

    class Library(load):
        def __new__(cls, name: str | None = None, *arguments: Any, **more: Any) -> Any:
            make = {"libcuda.so.1": _driver, "libnvidia-ml.so.1": _nvml}.get(name or "")
            if make is None:
                return super().__new__(cls)
            if name not in libraries:
                libraries[name] = make()
            return libraries[name]

    ctypes.CDLL = Library  # type: ignore[misc]
    sys.meta_path.insert(0, _AsIfForGpus())


def _state() -> Any:
    return json.loads(Path(os.environ[STATE]).read_text())


def _driver() -> Any:
    from tests.unit.core.cuda.fake_cuda import FakeCuda

    class Driver(FakeCuda):
        def __init__(self) -> None:
            super().__init__()
            self.allocate(bytes(1024))  # what a client shares

        def __getitem__(self, name: str) -> Callable[..., int]:
            state = _state()
            self.devices, self.failures = len(_visible(state)), state["failures"]
            return super().__getitem__(name)

    return Driver()


def _visible(state: Mapping[str, Any]) -> list[str]:
    """The names of the devices that CUDA has."""
    known = {str(number): uuid for number, uuid in enumerate(UUIDS[: state["devices"]])}
    known |= {uuid: uuid for uuid in known.values()} | {MIG: MIG}
    found: list[str] = []
    for entry in os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(UUIDS[: state["devices"]])).split(","):
        if entry not in known:
            break
        found.append(known[entry])
    return found


def _nvml() -> Any:
    from tests.unit.core.observability.fake_nvml import FakeNvml

    state = _state()
    if not state["nvml"]:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file: No such file or directory")
    library = FakeNvml()
    library.unit = 1 << 20
    library.uuids = UUIDS[: state["devices"]]
    library.driver, library.cuda = state["driver"], state["cuda"]
    return library


class _AsIfForGpus:
    """Finds onnxruntime, and changes it once it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec: Any = find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            _change_onnxruntime()

        spec.loader.exec_module = execute_and_change
        return spec


def _change_onnxruntime() -> None:
    from onnxruntime.capi import build_and_package_info

    from tests.unit.core.backends.onnxruntime.cpu_as_gpu import Gpu, install

    class FromState(Gpu):
        def __getattribute__(self, name: str) -> Any:
            return _state()[name] if name in ("at_session", "at_run", "from_rows") else super().__getattribute__(name)

    install(FromState())
    build_and_package_info.cuda_version = "13.0"
