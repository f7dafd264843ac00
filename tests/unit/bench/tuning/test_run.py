"""bench/tuning.py: what is seen of a load."""

from __future__ import annotations

import pytest

from bench.tuning import SETTINGS, WARM_UP_S, parse, seen_of

S = 1_000_000_000
MS = 1_000_000


def test_windows_and_answers_are_counted_after_the_warm_up() -> None:
    begin = int(WARM_UP_S * S)
    early = [0, 1]
    first = [begin + n * 10 * MS for n in range(100)]
    second = [begin + S + n * 10 * MS for n in range(100)]
    latencies = [900 * MS] * 2 + [10 * MS] * 100 + [10 * MS] * 90 + [30 * MS] * 9 + [-1]
    seen = seen_of([*early, *first, *second], latencies, 20, 3.5)
    assert seen.good == pytest.approx(190 / 1.99)
    assert (seen.windows, seen.p99_ms, seen.mean_batch) == (0.5, 30, 3.5)


def test_the_search_has_settings_with_and_without_a_delay() -> None:
    assert len(set(SETTINGS)) == 9
    assert {setting.delay_ns for setting in SETTINGS} >= {0}
    assert parse(["--rate", "5"]).rate == 5
