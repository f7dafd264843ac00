"""The GPUs of each of several engines: one engine a device, so that no two interpreters share one needlessly.

Source: docs/processes.md "Several engines".
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from core.backends.devices.cpu_budget import share_of
from core.lifecycle.engine_place import EnginePlace
from core.observability.hardware.visible_gpus import gpu_uuids

# The libraries that every framework needs for GPUs come as this package; an installation for processors has none.
_GPU_PACKAGE = "nvidia"


def usable_gpus(visible: str | None) -> int:
    """The number of GPUs among `visible` (the value of CUDA_VISIBLE_DEVICES) that models may run on.

    It asks the management library, which survives a fork, and not CUDA. 0 for an installation for processors.
    """
    return len(gpu_uuids(visible)) if find_spec(_GPU_PACKAGE) is not None else 0


def gpus_of_engine(place: EnginePlace, uuids: Sequence[str]) -> str | None:
    """The value of CUDA_VISIBLE_DEVICES for the engine at `place`; None: it sees all that the server sees.

    The GPUs are divided; if there are more engines than GPUs, several engines share one.
    """
    if place.count == 1 or len(uuids) < 2 or not all(uuids):
        return None
    return ",".join(share_of(uuids, place.index, place.count))
