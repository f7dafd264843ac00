"""What a SageMaker endpoint serves: one model, or the models that the platform loads.

Source: docs/spec/sagemaker.md sections A4 and A5.
"""

from __future__ import annotations

from adapters.common.absent_route import RouteAbsent
from adapters.sagemaker.memory import MemoryBudget
from adapters.sagemaker.model_registry import LoadedModels
from adapters.sagemaker.model_states import ModelStates
from adapters.sagemaker.response_type import ResponseTypes
from adapters.sagemaker.settings import DEFAULT_MODEL, MULTI_MODEL, SageMakerSettings
from core.engine.protocol import Engine
from core.engine.served_model import ServedModel
from core.frontend.bridge import Bridge
from core.frontend.default_model import DefaultModel


class SageMakerEndpoint:
    """The state that the routes of one container share. Any thread."""

    def __init__(
        self,
        engine: Engine,
        bridge: Bridge,
        settings: SageMakerSettings,
        memory: MemoryBudget | None = None,
        states: ModelStates | None = None,
    ) -> None:
        """`memory` limits the models of a multi-model endpoint; without it the container's memory does, and no GPU's.
        `states` are theirs; without it those of a container in one process.

        Raises ConfigInvalid for settings that cannot be right.
        """
        self.settings = settings
        self.response_types = ResponseTypes(settings)
        self._default_model = DefaultModel(
            engine, bridge, settings.default_model, f"set {DEFAULT_MODEL} to the model that /invocations runs"
        )
        self._loaded: LoadedModels | None = None
        if settings.multi_model:
            self._loaded = LoadedModels(engine, settings.models_root, memory or MemoryBudget.of_machine(), states)

    def default_model(self) -> ServedModel:
        """The model of /invocations. Raises RouteAbsent on a multi-model endpoint, else as `DefaultModel.find`."""
        if self._loaded is not None:
            raise RouteAbsent("this endpoint serves many models: name one with POST /models/{name}/invoke")
        return self._default_model.find()

    def loaded_models(self) -> LoadedModels:
        """The models of a multi-model endpoint. Raises RouteAbsent on an endpoint with one model."""
        if self._loaded is None:
            raise RouteAbsent(
                f"this endpoint serves one model, by POST /invocations: {MULTI_MODEL} is not 'true'",
                hint=f"set {MULTI_MODEL}=true for an endpoint that loads models by POST /models",
            )
        return self._loaded
