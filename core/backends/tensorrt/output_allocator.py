"""Memory for outputs whose shapes only the values of the inputs decide.

Source: TensorRT's Python API reference, IOutputAllocator.
"""

from __future__ import annotations

from typing import Any

from core.cuda.device_memory import DeviceMemory
from core.cuda.driver import CudaError


def make_allocator(module: Any, memory: DeviceMemory) -> Any:
    """An `IOutputAllocator` of the package `module` on `memory`. TensorRT calls it while it begins an execution.

    Afterwards it has the `shape` of the output, its `address`, and the `error` with which memory could not be had.
    """

    class OutputAllocator(module.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] = ()
            self.address = 0
            self.error: CudaError | None = None

        def reallocate_output(self, tensor_name: str, current: int, size: int, alignment: int) -> int:
            try:
                self.address, self.error = memory.address(size), None
            except CudaError as error:
                self.address, self.error = 0, error
            return self.address

        def reallocate_output_async(
            self, tensor_name: str, current: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, current, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return OutputAllocator()
