"""What a process that answers HTTP knows of the models of a SageMaker multi-model endpoint: their memory and states."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from app.settings.server import ServerSettings
from app.supervisor.private_directory import PrivateDirectory

if TYPE_CHECKING:
    from adapters.sagemaker.memory import MemoryBudget
    from adapters.sagemaker.model_states import ModelStates
    from core.remote.client import RemoteEngine
    from core.remote.pool.engine_pool import EnginePool


class MultiModel(NamedTuple):
    memory: MemoryBudget
    states: ModelStates


def own_models(settings: ServerSettings) -> MultiModel:
    """For the one process of a server that has no front ends."""
    from adapters.sagemaker.memory import MemoryBudget
    from adapters.sagemaker.model_states import OwnModelStates
    from core.backends.devices.cuda import gpu_ids
    from core.backends.registry import BackendRegistry

    backends = BackendRegistry(settings.backend_settings, gpu_ids=gpu_ids(settings.min_supported_compute_capability))
    memory = MemoryBudget.of_machine(
        gpu_ids=backends.gpu_ids, visible_gpus=settings.visible_gpus, limit=_limit(settings)
    )
    return MultiModel(memory, OwnModelStates())


def shared_models(
    settings: ServerSettings, engine: RemoteEngine | EnginePool, directory: PrivateDirectory
) -> MultiModel:
    """For a front end, which shares them with the others through `directory`."""
    from adapters.sagemaker.memory import MemoryBudget
    from adapters.sagemaker.reservations import SharedReservations
    from adapters.sagemaker.shared_model_states import SharedModelStates
    from core.observability.hardware.host_memory import resident_bytes

    def resident() -> int:
        return sum(map(resident_bytes, engine.process_ids()))

    memory = MemoryBudget.of_engines(resident, SharedReservations(directory.loads), limit=_limit(settings))
    return MultiModel(memory, SharedModelStates(directory.models, engine))


def _limit(settings: ServerSettings) -> int | None:
    return settings.sagemaker_memory_limit_mb * 1_000_000 or None
