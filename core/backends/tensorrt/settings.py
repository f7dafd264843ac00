"""The settings of the backend (--backend-config=tensorrt,NAME=VALUE), and what a configuration says about running.

Source: docs/spec/framework-backends.md section 6.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trident.core.backends.parameters import boolean, field_of, parameters_of
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid

_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")
_STRATEGY = "execution_context_allocation_strategy"
_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")
_PRIORITIES = {1: 1, 2: -1}  # PRIORITY_MAX, PRIORITY_MIN


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """`plugins` are libraries that are loaded before the first plan. `version_compatible`: plans of other versions may
    bring code with them, which is run."""

    plugins: tuple[str, ...] = ()
    version_compatible: bool = False

    @classmethod
    def read(cls, given: Mapping[str, str]) -> BackendSettings:
        """Raises ConfigInvalid."""
        policy = given.get("execution-policy", _POLICIES[0])
        if policy not in _POLICIES:
            raise ConfigInvalid(f"unknown execution-policy '{policy}'", hint=f"one of {', '.join(_POLICIES)}")
        # Requests are always gathered into one buffer, and each instance has its thread: both values do the same here.
        boolean(given.get("coalesce-request-input", "false"))
        plugins = tuple(path for path in given.get("plugins", "").split(";") if path)
        return cls(plugins, boolean(given.get("version-compatible", "false")))


@dataclass(frozen=True, slots=True)
class RunSettings:
    """`priority` is that of the streams: 1 before others, -1 after them. `strategy` is TensorRT's name."""

    priority: int
    spins: bool
    strategy: str

    @classmethod
    def read(cls, config: ModelConfig) -> RunSettings:
        """The settings of `config`. Raises ConfigInvalid with Triton's text."""
        strategy = parameters_of(config).get(_STRATEGY, _STRATEGIES[0])
        if strategy not in _STRATEGIES:
            raise ConfigInvalid(
                f"Invalid value for '{_STRATEGY}': '{strategy}' for model instance '{config.name}'. Supported values "
                "are 'STATIC' and 'ON_PROFILE_CHANGE'.",
                model=config.name,
                field=field_of(_STRATEGY),
            )
        optimization = config.optimization
        return cls(_PRIORITIES.get(optimization.priority, 0), optimization.cuda.busy_wait_events, strategy)
