"""ONNX Runtime on a machine without a GPU, as if it had been built for one and its CPU were one.

A session that is asked for with CUDA or TensorRT runs on the CPU, and says that it has those providers. `Gpu` says how
its sessions and runs fail, in the words of ONNX Runtime's CUDA provider.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime

CPU = "CPUExecutionProvider"
PROVIDERS = ["TensorrtExecutionProvider", "CUDAExecutionProvider", CPU]
PREFIX = "[ONNXRuntimeError] : 1 : FAIL : "
_CALL = " ; GPU=0 ; hostname=box ; file=/onnxruntime_src/cuda_call.cc ; line=129 ; expr=%s; "
LOST = f"{PREFIX}CUDA failure 700: an illegal memory access was encountered{_CALL % 'cudaStreamSynchronize(s)'}"
NO_MEMORY = f"{PREFIX}CUDA failure 2: out of memory{_CALL % 'cudaMalloc(&p, size)'}"


@dataclass
class Gpu:
    """`at_session` is how sessions fail, `at_run` the runs of `from_rows` rows or more; "": none does.

    By its `clock` a run takes a millisecond, and `change_s` seconds more with other rows than the one before.
    `sessions` has the providers of all that were made, `runs` the shape of the first input of each run.
    """

    at_session: str = ""
    at_run: str = ""
    from_rows: int = 1
    change_s: float = 0.0
    sessions: list[list[str]] = field(default_factory=list)
    runs: list[tuple[int, ...]] = field(default_factory=list)
    now_s: float = 0.0

    def clock(self) -> float:
        return self.now_s

    def run(self, shape: tuple[int, ...]) -> None:
        if self.runs and self.runs[-1][:1] != shape[:1]:
            self.now_s += self.change_s
        self.now_s += 0.001
        self.runs.append(shape)
        if self.at_run and shape[0] >= self.from_rows:
            raise RuntimeError(self.at_run)


def install(gpu: Gpu, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have this process's ONNX Runtime be one for `gpu`. `replace` is as setattr."""
    real: Any = onnxruntime.InferenceSession

    class Session(real):
        def __init__(self, model: Any, options: Any = None, providers: Any = (), **more: Any) -> None:
            self._names = [name for name, _ in providers]
            # That of the latest input which was bound.
            self._shape: tuple[int, ...] = ()
            if self._names != [CPU]:
                gpu.sessions.append(self._names)
                if gpu.at_session:
                    raise RuntimeError(gpu.at_session)
            super().__init__(model, options, providers=[CPU], **more)
            self._providers = self._names

        def run(self, names: Any, feed: Any, options: Any = None) -> Any:
            if self._names != [CPU] and not options.terminate:
                gpu.run(np.shape(next(iter(feed.values()))))
            return super().run(names, feed, options)

        def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
            if self._names != [CPU]:
                gpu.run(self._shape)
            super().run_with_iobinding(binding, options)

        def io_binding(self) -> Any:
            binding = super().io_binding()
            bind = binding.bind_ortvalue_input

            def bind_and_note(name: str, value: Any) -> None:
                self._shape = tuple(value.shape())
                bind(name, value)

            binding.bind_ortvalue_input = bind_and_note
            return binding

    replace(onnxruntime, "InferenceSession", Session)
    replace(onnxruntime, "get_available_providers", lambda: PROVIDERS)
    replace(onnxruntime, "preload_dlls", lambda: None)
