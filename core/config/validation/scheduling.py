"""Checks of the scheduling in a configuration: dynamic batching, sequences, ensembles, response cache.

Source: docs/spec/schedulers.md sections 3.2 and 3.4; docs/spec/model-config.md sections 2.2 and 2.10.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.config.latency_target import latency_target_problems
from core.config.problem import Problem
from core.config.queue_delay import queue_delay_problems
from core.config.schema import ModelConfig, ModelDynamicBatching, ModelQueuePolicy
from core.config.validation.ensemble import ensemble_problems
from core.config.validation.sequence import sequence_problems


def scheduling_problems(config: ModelConfig, model_name: str, *, completed: bool = True) -> list[Problem]:
    """The problems of the scheduler; with `completed` False auto-complete may still fill max_batch_size."""
    problems: list[Problem] = []
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        limit = config.max_batch_size if completed or config.max_batch_size > 0 else None
        problems += _preferred_size_problems(batching.preferred_batch_size, limit, model_name)
        problems += _priority_problems(batching, model_name)
        problems += _ordering_problems(batching, model_name)
    problems += latency_target_problems(config, completed=completed)
    problems += queue_delay_problems(config)
    problems += sequence_problems(config, model_name, completed=completed)
    problems += ensemble_problems(config, model_name)
    problems += _cache_problems(config, model_name)
    return problems


def _preferred_size_problems(sizes: Sequence[int], limit: int | None, model_name: str) -> list[Problem]:
    path = "dynamic_batching.preferred_batch_size"
    problems: list[Problem] = []
    if any(size <= 0 for size in sizes):
        problems.append(Problem(path, f"dynamic batching preferred size must be positive for {model_name}"))
    if limit is not None and any(size > limit for size in sizes):
        text = f"dynamic batching preferred size must be <= max batch size for {model_name}"
        problems.append(Problem(path, text, f"max_batch_size is {limit}"))
    return problems


def _priority_problems(batching: ModelDynamicBatching, model_name: str) -> list[Problem]:
    levels = batching.priority_levels
    if levels == 0:
        return []
    problems: list[Problem] = []
    if not 1 <= batching.default_priority_level <= levels:
        text = f"default priority level must be in range [1, {levels}] for {model_name}"
        problems.append(Problem("dynamic_batching.default_priority_level", text))
    if any(not 1 <= level <= levels for level in batching.priority_queue_policy):
        text = f"priority queue policy must have priority level in range [1, {levels}] for {model_name}"
        problems.append(Problem("dynamic_batching.priority_queue_policy", text))
    return problems


def _ordering_problems(batching: ModelDynamicBatching, model_name: str) -> list[Problem]:
    if not batching.preserve_ordering:
        return []
    problems: list[Problem] = []
    if batching.priority_levels > 1:
        text = f"Only one priority level is allowed when 'preserve_ordering' is true for {model_name}"
        problems.append(Problem("dynamic_batching.priority_levels", text))
    policies = {"default_queue_policy": batching.default_queue_policy}
    for level, policy in sorted(batching.priority_queue_policy.items()):
        policies[f"priority_queue_policy[{level}]"] = policy
    for name, policy in policies.items():
        if policy.timeout_action == ModelQueuePolicy.DELAY and policy.default_timeout_microseconds != 0:
            text = "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for "
            problems.append(Problem(f"dynamic_batching.{name}.timeout_action", text + model_name))
    return problems


def _cache_problems(config: ModelConfig, model_name: str) -> list[Problem]:
    if not config.response_cache.enable:
        return []
    problems: list[Problem] = []
    if config.model_transaction_policy.decoupled:
        problems.append(decoupled_cache_problem(model_name))
    if config.HasField("sequence_batching"):
        problems.append(_cache_problem(model_name, "sequence batching scheduler"))
    return problems


def decoupled_cache_problem(model_name: str, hint: str = "") -> Problem:
    """That of a model with a response cache that may answer a request more than once."""
    return _cache_problem(model_name, "'decoupled' transaction policy", hint)


def _cache_problem(model_name: str, what: str, hint: str = "") -> Problem:
    text = (
        f"Response Cache does not currently support model {model_name} with {what}. Please disable the response cache."
    )
    return Problem("response_cache", text, hint)
