"""The target of a model's batcher: the parameter `TARGET_P99_MS` of its configuration.

Source: docs/spec/schedulers.md section 3.2, "A target instead of a delay".
"""

from __future__ import annotations

from core.config.problem import Problem
from core.config.schema import ModelConfig

TARGET_P99 = "TARGET_P99_MS"
_PATH = f"parameters[{TARGET_P99}]"
_LONGEST_MS = 3_600_000
_NS_PER_MS = 1_000_000


def target_p99_ns(config: ModelConfig) -> int:
    """The target of a valid configuration, 0 without one."""
    return round(_value(config) * _NS_PER_MS) if TARGET_P99 in config.parameters else 0


def latency_target_problems(config: ModelConfig, *, completed: bool) -> list[Problem]:
    """The problems of the target; with `completed` False auto-complete may still fill max_batch_size."""
    if TARGET_P99 not in config.parameters:
        return []
    name = config.name
    text = config.parameters[TARGET_P99].string_value
    problems = []
    if not 0 < _value(config) <= _LONGEST_MS:
        message = f"{TARGET_P99} must be milliseconds from above 0 to {_LONGEST_MS}, got '{text}' for {name}"
        hint = 'give the latency that one in a hundred requests may exceed, such as string_value: "20"'
        problems.append(Problem(_PATH, message, hint))
    if not config.HasField("dynamic_batching"):
        hint = "add 'dynamic_batching { }', whose delay and size the target sets, or remove the parameter"
        problems.append(Problem(_PATH, f"{TARGET_P99} needs dynamic_batching for {name}", hint))
    elif completed and config.max_batch_size < 2:
        hint = "set max_batch_size to the largest batch that fits into memory, or remove the parameter"
        problems.append(Problem(_PATH, f"{TARGET_P99} needs a max_batch_size of at least 2 for {name}", hint))
    batching = config.dynamic_batching
    for field, is_set in (
        ("max_queue_delay_microseconds", batching.max_queue_delay_microseconds > 0),
        # A completed configuration names the default.
        ("preferred_batch_size", list(batching.preferred_batch_size) not in ([], [config.max_batch_size])),
    ):
        if is_set:
            message = f"{TARGET_P99} sets what {field} sets for {name}"
            problems.append(
                Problem(f"dynamic_batching.{field}", message, f"remove one of the two: {TARGET_P99} or {field}")
            )
    if config.model_transaction_policy.decoupled:
        hint = "a decoupled model answers after its execution: give it a max_queue_delay_microseconds instead"
        problems.append(Problem(_PATH, f"{TARGET_P99} is not for the decoupled model {name}", hint))
    return problems


def _value(config: ModelConfig) -> float:
    """Not a number for what is none."""
    try:
        return float(config.parameters[TARGET_P99].string_value)
    except ValueError:
        return float("nan")
