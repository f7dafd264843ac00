"""Whether a queue delay is waited out although every caller waits: the parameter `WAIT_OUT_QUEUE_DELAY`.

Source: docs/spec/schedulers.md section 3.2, "When every caller waits".
"""

from __future__ import annotations

from core.config.problem import Problem
from core.config.schema import ModelConfig

WAIT_OUT = "WAIT_OUT_QUEUE_DELAY"
_VALUES = {"true": True, "1": True, "false": False, "0": False}


def waits_out_delay(config: ModelConfig) -> bool:
    """The value in a valid configuration, False without one."""
    return WAIT_OUT in config.parameters and _VALUES[_text(config)]


def queue_delay_problems(config: ModelConfig) -> list[Problem]:
    if WAIT_OUT not in config.parameters or _text(config) in _VALUES:
        return []
    text = config.parameters[WAIT_OUT].string_value
    message = f"{WAIT_OUT} must be true or false, got '{text}' for {config.name}"
    hint = 'give string_value: "true" to wait for the whole queue delay even if every open connection waits already'
    return [Problem(f"parameters[{WAIT_OUT}]", message, hint)]


def _text(config: ModelConfig) -> str:
    text: str = config.parameters[WAIT_OUT].string_value
    return text.lower()
