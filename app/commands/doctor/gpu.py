"""The GPUs: the driver, the versions, and the libraries that the backends need for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.commands.doctor.report import Level, Line
from app.commands.doctor.sizes import size_text
from app.settings.server import ServerSettings
from core.backends.devices.cuda import gpu_ids
from core.backends.devices.device_support import DeviceSupport, ProviderState
from core.backends.registry import device_support
from core.observability.hardware.visible_gpus import DriverReading, read_driver

_AREA = "GPU"
_SHOWN = 5
_DRIVER_CURE = (
    "install NVIDIA's driver, and start the container with the GPUs (docker run --gpus all, or nvidia.com/gpu in "
    "Kubernetes)"
)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """`driver` is the reason if there is none. `usable` are the CUDA numbers of the GPUs that the server may use.

    `support` is by the backend's name: its providers, or the reason why its framework cannot be imported.
    """

    driver: DriverReading | str
    usable: Sequence[int]
    support: Mapping[str, DeviceSupport | str]


def read_gpu(settings: ServerSettings) -> GpuReading:
    """Load the driver and the frameworks; takes seconds."""
    usable = gpu_ids(settings.min_supported_compute_capability)
    return GpuReading(read_driver(settings.visible_gpus), usable, device_support())


def gpu_lines(reading: GpuReading, asked_by: Sequence[str]) -> list[Line]:
    """`asked_by` are the models whose configuration asks for a GPU."""
    asked = f"; asked for by {_names(asked_by)}" if asked_by else ""
    lines = [_driver_line(reading, asked)]
    for name, support in reading.support.items():
        if isinstance(support, str):
            cure = "install trident-inference with the extra that brings it, such as trident-inference[cpu]"
            lines.append(Line(_AREA, f"backend {name}", Level.FAILED, f"cannot be imported: {support}", cure))
            continue
        lines.append(Line(_AREA, f"backend {name}", Level.OK, support.framework))
        lines += [_provider_line(each, bool(reading.usable), asked) for each in support.providers]
    return lines


def _driver_line(reading: GpuReading, asked: str) -> Line:
    driver, usable = reading.driver, len(reading.usable)
    if isinstance(driver, str) and not usable:
        if asked:
            return Line(_AREA, "driver", Level.FAILED, f"no GPU ({driver}){asked}", _DRIVER_CURE)
        return Line(_AREA, "driver", Level.OK, "no GPU, and none is asked for: models run on the CPU")
    if isinstance(driver, str):
        text = f"{_count(usable)}, but their state cannot be read ({driver})"
        return Line(_AREA, "driver", Level.WARNING, text, "give the container the driver's utility libraries")
    sizes = ", ".join(size_text(size) for size in driver.gpu_bytes if size)
    text = f"{driver.version}, CUDA up to {driver.cuda}, {_count(usable)}" + (f" ({sizes})" if sizes else "")
    if usable:
        return Line(_AREA, "driver", Level.OK, text)
    cure = "check CUDA_VISIBLE_DEVICES and --min-supported-compute-capability; `nvidia-smi` shows what the driver sees"
    return Line(_AREA, "driver", Level.FAILED if asked else Level.WARNING, f"{text} that can be used{asked}", cure)


def _provider_line(state: ProviderState, has_gpu: bool, asked: str) -> Line:
    if state.installed and not state.problem:
        return Line(_AREA, state.name, Level.OK, "its libraries load")
    is_for_gpus = state.name.startswith("CUDA")
    if state.installed:
        level = Level.FAILED if is_for_gpus and (asked or has_gpu) else Level.WARNING
        return Line(_AREA, state.name, level, f"cannot be loaded: {state.problem}", state.cure)
    text = "not in this installation"
    if is_for_gpus and asked:
        return Line(_AREA, state.name, Level.FAILED, f"{text}{asked}", state.cure)
    if is_for_gpus and has_gpu:
        return Line(_AREA, state.name, Level.WARNING, f"{text}: models run on the CPU", state.cure)
    return Line(_AREA, state.name, Level.OK, f"{text}, and not asked for" if is_for_gpus else f"{text} (optional)")


def _count(gpus: int) -> str:
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
