"""Whether TensorRT is installed, and can be imported."""

from __future__ import annotations

from importlib import import_module

from core.backends.devices.device_support import DeviceSupport, ProviderState
from core.backends.tensorrt import EXTRA

_NAME = "TensorRT"


def device_support() -> DeviceSupport:
    """Imports the package, which loads its libraries."""
    try:
        version = import_module("tensorrt").__version__
    except ModuleNotFoundError:
        return DeviceSupport(f"{_NAME} is not installed (optional)", ())
    except (ImportError, OSError) as error:
        cure = f"install it again: pip install --force-reinstall 'trident-inference[{EXTRA}]'"
        return DeviceSupport(_NAME, [ProviderState(_NAME, True, str(error), cure)])
    return DeviceSupport(f"{_NAME} {version}", ())
