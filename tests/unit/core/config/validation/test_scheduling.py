"""The problems of schedulers and the response cache."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trident.core.config.schema import ModelConfig
from trident.core.config.validate import scheduling_problems


def target(value: str) -> str:
    return f'parameters {{ key: "TARGET_P99_MS" value {{ string_value: "{value}" }} }}'


def waiting_out(value: str) -> str:
    return f'parameters {{ key: "WAIT_OUT_QUEUE_DELAY" value {{ string_value: "{value}" }} }}'


def messages(text: str, *, completed: bool = True) -> list[str]:
    config = text_format.Parse(text, ModelConfig(name="m"))
    return [problem.message for problem in scheduling_problems(config, "m", completed=completed)]


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        ("preferred_batch_size: [ 2, 8 ]", []),
        ("preferred_batch_size: [ 0 ]", ["dynamic batching preferred size must be positive for m"]),
        ("preferred_batch_size: [ 9 ]", ["dynamic batching preferred size must be <= max batch size for m"]),
        ("priority_levels: 3", ["default priority level must be in range [1, 3] for m"]),
        ("priority_levels: 3 default_priority_level: 4", ["default priority level must be in range [1, 3] for m"]),
        (
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value {} }",
            ["priority queue policy must have priority level in range [1, 2] for m"],
        ),
        (
            "preserve_ordering: true priority_levels: 2 default_priority_level: 1",
            ["Only one priority level is allowed when 'preserve_ordering' is true for m"],
        ),
        (
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }",
            ["Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m"],
        ),
        ("preserve_ordering: true default_queue_policy { timeout_action: DELAY }", []),
        ("priority_levels: 2 default_priority_level: 2 priority_queue_policy { key: 1 value {} }", []),
    ],
)
def test_dynamic_batching_problem_has_its_text(batching: str, expected: list[str]) -> None:
    assert messages(f"max_batch_size: 8 dynamic_batching {{ {batching} }}") == expected


def test_preferred_size_is_checked_after_auto_complete() -> None:
    text = "dynamic_batching { preferred_batch_size: [ 4 ] }"
    assert messages(text, completed=False) == []
    assert messages(text) == ["dynamic batching preferred size must be <= max batch size for m"]
    assert messages(f"max_batch_size: 2 {text}", completed=False) == messages(text)


@pytest.mark.parametrize("value", ["0.5", "20", "3600000", "1e3"])
def test_a_target_in_milliseconds_is_valid(value: str) -> None:
    assert messages(f"max_batch_size: 8 dynamic_batching {{}} {target(value)}") == []
    # As auto-complete writes it.
    assert messages(f"max_batch_size: 8 dynamic_batching {{ preferred_batch_size: 8 }} {target(value)}") == []


@pytest.mark.parametrize("value", ["", "fast", "0", "-1", "nan", "inf", "3600001", "20 ms"])
def test_a_target_that_is_no_time_is_a_problem(value: str) -> None:
    assert messages(f"max_batch_size: 8 dynamic_batching {{}} {target(value)}") == [
        f"TARGET_P99_MS must be milliseconds from above 0 to 3600000, got '{value}' for m"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_batch_size: 8", "TARGET_P99_MS needs dynamic_batching for m"),
        ("max_batch_size: 1 dynamic_batching {}", "TARGET_P99_MS needs a max_batch_size of at least 2 for m"),
        (
            "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1 }",
            "TARGET_P99_MS sets what max_queue_delay_microseconds sets for m",
        ),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }",
            "TARGET_P99_MS sets what preferred_batch_size sets for m",
        ),
        (
            "max_batch_size: 8 dynamic_batching {} model_transaction_policy { decoupled: true }",
            "TARGET_P99_MS is not for the decoupled model m",
        ),
    ],
)
def test_a_target_that_does_not_fit_the_rest_is_a_problem_with_a_cure(text: str, problem: str) -> None:
    config = text_format.Parse(f"{text} {target('20')}", ModelConfig(name="m"))
    (found,) = scheduling_problems(config, "m")
    assert found.message == problem
    assert found.hint


def test_a_target_waits_for_the_size_that_auto_complete_finds() -> None:
    assert messages(f"dynamic_batching {{}} {target('20')}", completed=False) == []


def test_a_sequence_batchers_own_problems_are_among_them() -> None:
    assert messages("sequence_batching { control_input {} }") == [
        "sequence batching control tensor must have a name for m"
    ]


def test_an_ensembles_own_problems_are_among_them() -> None:
    assert messages('platform: "ensemble" ensemble_scheduling {}') == ["must specify 'step' for ensemble 'm'"]


def test_response_cache_excludes_some_models() -> None:
    start = "Response Cache does not currently support model m with "
    end = ". Please disable the response cache."
    cached = "response_cache { enable: true }"
    assert messages(cached) == []
    assert messages(f"{cached} model_transaction_policy {{ decoupled: true }}") == [
        f"{start}'decoupled' transaction policy{end}"
    ]
    assert f"{start}sequence batching scheduler{end}" in messages(f"{cached} sequence_batching {{}}")


@pytest.mark.parametrize("value", ["true", "False", "1", "0"])
def test_whether_a_delay_is_waited_out_is_a_boolean(value: str) -> None:
    assert messages(f"max_batch_size: 8 dynamic_batching {{}} {waiting_out(value)}") == []


@pytest.mark.parametrize("value", ["", "yes"])
def test_a_delay_that_is_waited_out_perhaps_is_a_problem(value: str) -> None:
    assert messages(f"max_batch_size: 8 dynamic_batching {{}} {waiting_out(value)}") == [
        f"WAIT_OUT_QUEUE_DELAY must be true or false, got '{value}' for m"
    ]
