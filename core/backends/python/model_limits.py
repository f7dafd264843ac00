"""What a model may use, by the parameters of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.backends.parameter_values import field_of
from core.errors import ConfigInvalid

EXECUTION_LIMIT = "EXECUTION_LIMIT_SECONDS"
MEMORY_LIMIT = "MEMORY_LIMIT_BYTES"


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """`execution_s` is how long an execution may take: then its process is killed and started again. `memory_bytes` is
    the memory that the process may allocate: then Python raises MemoryError. None is without a limit.
    """

    execution_s: float | None = None
    memory_bytes: int | None = None

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> ModelLimits:
        """Raises ConfigInvalid."""
        memory = _positive(MEMORY_LIMIT, parameters)
        return cls(_positive(EXECUTION_LIMIT, parameters), None if memory is None else int(memory))


def _positive(name: str, parameters: Mapping[str, str]) -> float | None:
    text = parameters.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e15:
        raise ConfigInvalid(f"parameter '{name}' must be a number above 0, not '{text}'", field=field_of(name))
    return value
