"""The facts about a backend that completing and checking a configuration need."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from core.config.instance_groups import GpuIds
from core.config.schema import ModelConfig
from core.config.signature import ModelSignature


class BackendFacts(Protocol):
    """Answers for the backend of a configuration. Loader threads, several at once. Each method raises a ServerError."""

    def gpu_ids(self, config: ModelConfig) -> GpuIds:
        """The GPUs that the instances may use."""
        ...

    def default_max_batch_size(self, config: ModelConfig) -> int:
        """The `max_batch_size` of a model that can batch and does not set one; 0 for none."""
        ...

    def completes(self, config: ModelConfig) -> bool:
        """Whether the model completes its configuration itself, and wants to do so with a complete one, too."""
        ...

    def complete(self, path: Path, config: ModelConfig) -> None:
        """Have the model in the version directory `path` complete `config` in place. Only called if it `completes`."""
        ...

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        """The inputs and outputs of the model in the version directory `path`; None if it has none of its own."""
        ...

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError if the complete configuration asks for something that this server does not have."""
        ...
