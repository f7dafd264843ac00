"""The execution providers of the installed ONNX Runtime, and whether their libraries load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnxruntime

from trident.core.backends.onnxruntime.providers import CUDA, CURES, missing_library
from trident.core.backends.onnxruntime.session import LIBRARIES
from trident.core.backends.registry import DeviceSupport, ProviderState


def device_support() -> DeviceSupport:
    """Loads the providers' libraries, which may take seconds."""
    available: Sequence[str] = onnxruntime.get_available_providers()
    if CUDA in available:
        # pip installs CUDA and cuDNN where the linker does not search.
        onnxruntime.preload_dlls()
    return DeviceSupport(f"ONNX Runtime {onnxruntime.__version__}", provider_states(available, LIBRARIES))


def provider_states(available: Sequence[str], folder: Path) -> list[ProviderState]:
    """The state of each provider that a configuration can ask for; `folder` has ONNX Runtime's libraries."""
    return [
        ProviderState(name, name in available, missing_library(name, folder) if name in available else "", cure)
        for name, cure in CURES.items()
    ]
