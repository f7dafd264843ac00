"""The settings of the backend: the values of `--backend-config=python,NAME=VALUE`.

Source: docs/spec/python-backend.md section 4.5.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from trident.core.backends.parameters import boolean, field_of, integer
from trident.core.backends.python.environment import EnvironmentSettings
from trident.core.errors import ConfigInvalid
from trident.core.interprocess.shared_memory import LARGEST

_log = logging.getLogger("trident.backends.python")

_STRICT_OUTPUTS = "strict-outputs"
MEMORY_SIZE = "shared-memory-byte-size"
_TIMEOUT = "stub-timeout-seconds"
_SMALLEST_MEMORY = 1 << 20
_DEFAULT_MEMORY = 1 << 30
_DEFAULT_TIMEOUT_S = 30
# Triton's settings of its own shared memory and threads.
_WITHOUT_EFFECT = (
    "shm-default-byte-size",
    "shm-growth-byte-size",
    "shm_message_queue_size",
    "thread-pool-size",
    "shm-region-prefix-name",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings:
    """`memory_bytes` is the size of the memory that the server shares with each process: half of it for requests, half
    for responses. `finalize_limit_s` is how long a model may take to finalize, in seconds. `environments` concerns
    the Python environments of models. `strict_outputs`: an output that is not as configured is an error.
    """

    environments: EnvironmentSettings
    memory_bytes: int = _DEFAULT_MEMORY
    finalize_limit_s: float = _DEFAULT_TIMEOUT_S
    strict_outputs: bool = False

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> PythonSettings:
        """Raises ConfigInvalid."""
        ignored = [name for name in _WITHOUT_EFFECT if name in settings]
        if ignored:
            _log.warning("without effect here: %s", ", ".join(f"--backend-config=python,{name}" for name in ignored))
        memory = integer(settings.get(MEMORY_SIZE, str(_DEFAULT_MEMORY)))
        if not _SMALLEST_MEMORY <= memory <= LARGEST:
            raise ConfigInvalid(f"{MEMORY_SIZE} is {memory}, which is not between {_SMALLEST_MEMORY} and {LARGEST}")
        seconds = integer(settings.get(_TIMEOUT, str(_DEFAULT_TIMEOUT_S)))
        if seconds <= 0:
            raise ConfigInvalid(f"{_TIMEOUT} can't be smaller than or equal to zero")
        return cls(
            environments=EnvironmentSettings.read(settings),
            memory_bytes=memory,
            finalize_limit_s=float(seconds),
            strict_outputs=boolean(settings.get(_STRICT_OUTPUTS, "false")),
        )


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
