"""The GPUs that CUDA_VISIBLE_DEVICES makes visible, by CUDA's device numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.observability.hardware.nvml import Gpu, Nvml, NvmlError, NvmlLibrary, load_library


def visible_gpus(gpus: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES names, in its order; None: the variable is not set, so all.

    Entries are numbers and prefixes of UUIDs. As in CUDA, the list ends at the first entry that does not name exactly
    one GPU.
    """
    if visible is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            found = list(gpus[int(entry) : int(entry) + 1])
        else:
            found = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(found) != 1:
            break
        chosen += found
    return chosen


@dataclass(frozen=True, slots=True)
class DriverReading:
    """NVIDIA's driver: its version, the newest CUDA version that it supports, and the total bytes of each visible GPU.

    The bytes of a GPU that does not report them are 0.
    """

    version: str
    cuda: str
    gpu_bytes: tuple[int, ...]


def read_driver(visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None) -> DriverReading | str:
    """The driver and the GPUs in `visible`, or the reason why they cannot be read. May block for seconds."""
    try:
        nvml, gpus = open_visible(visible, load)
    except (OSError, NvmlError) as error:
        return str(error)
    try:
        memory = [_memory_or_none(nvml, gpu) for gpu in gpus]
        return DriverReading(nvml.driver_version(), nvml.cuda_version(), tuple(m[0] if m else 0 for m in memory))
    except NvmlError as error:
        return str(error)
    finally:
        nvml.close()


def open_visible(visible: str | None, load: Callable[[], NvmlLibrary] | None) -> tuple[Nvml, list[Gpu]]:
    """A session and the visible GPUs. Raises OSError without the library, NvmlError if the library fails."""
    nvml = Nvml((load or load_library)())
    try:
        return nvml, visible_gpus(nvml.gpus(), visible)
    except NvmlError:
        nvml.close()
        raise


def gpu_uuids(visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None) -> tuple[str, ...]:
    """The UUIDs of the GPUs in `visible`, by CUDA's device number; "" for a GPU that NVML may not read.

    Empty without NVML. The numbers agree with CUDA's if the GPUs are of one type or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    try:
        nvml, gpus = open_visible(visible, load)
    except (OSError, NvmlError):
        return ()
    nvml.close()
    return tuple(gpu.uuid for gpu in gpus)


def gpu_memory(
    visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None
) -> tuple[tuple[int, int] | None, ...]:
    """Total and used bytes of the GPUs in `visible`, by CUDA's device number as in `gpu_uuids`.

    None for a GPU that does not report them. Empty without NVML. The first call may block for seconds.
    """
    try:
        nvml, gpus = open_visible(visible, load)
    except (OSError, NvmlError):
        return ()
    try:
        return tuple(_memory_or_none(nvml, gpu) for gpu in gpus)
    finally:
        nvml.close()


def _memory_or_none(nvml: Nvml, gpu: Gpu) -> tuple[int, int] | None:
    try:
        return nvml.memory(gpu)
    except NvmlError:
        return None
