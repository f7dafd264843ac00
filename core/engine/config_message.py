"""A model configuration on its way to a front end: Triton's ModelConfig message, serialized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.config.schema import ModelConfig


@dataclass(frozen=True, slots=True)
class ConfigMessage:
    """The message in protobuf's wire format, so that it can cross a process boundary.

    A front end in another process does not load protobuf, which takes more memory than all of its own code, until a
    client asks for a configuration.
    """

    serialized: bytes

    @staticmethod
    def of(config: ModelConfig) -> ConfigMessage:
        return ConfigMessage(config.SerializeToString())

    def parse(self) -> ModelConfig:
        """A new message. The first call in a process imports protobuf, which takes tens of milliseconds."""
        from core.config.schema import ModelConfig

        return ModelConfig.FromString(self.serialized)
