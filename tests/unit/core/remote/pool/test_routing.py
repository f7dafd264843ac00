"""Which engine runs a request."""

from __future__ import annotations

from collections import Counter

from trident.core.remote.pool import home_of, least_busy


def test_the_less_busy_of_two_engines_gets_the_request() -> None:
    for turn in range(4):
        assert least_busy([3, 1], turn) == 1
        assert least_busy([1, 3], turn) == 0


def test_equally_busy_engines_take_turns() -> None:
    assert [least_busy([5, 5], turn) for turn in range(4)] == [0, 1, 0, 1]
    assert Counter(least_busy([0] * 5, turn) for turn in range(20)) == dict.fromkeys(range(5), 4)


def test_every_pair_of_engines_is_compared() -> None:
    busiest = {
        least_busy([0 if each == free else 9 for each in range(4)], turn) for free in range(4) for turn in range(12)
    }
    assert busiest == {0, 1, 2, 3}
    for free in range(4):
        chosen = Counter(least_busy([0 if each == free else 9 for each in range(4)], turn) for turn in range(12))
        assert chosen[free] == 6, "it is in half of the pairs"


def test_one_engine_gets_everything() -> None:
    assert {least_busy([7], turn) for turn in range(3)} == {0}


def test_state_is_spread_over_the_engines_and_each_stays_where_it_is() -> None:
    homes = {key: home_of(f"sequence {key}", [0, 1, 2]) for key in range(3000)}
    assert all(800 < count < 1200 for count in Counter(homes.values()).values())
    assert homes == {key: home_of(f"sequence {key}", [0, 1, 2]) for key in range(3000)}


def test_only_the_state_of_a_missing_engine_moves() -> None:
    for key in range(300):
        before = home_of(f"sequence {key}", [0, 1, 2])
        after = [0, 2][home_of(f"sequence {key}", [0, 2])]
        assert after == before or before == 1


def test_any_text_of_a_client_names_state() -> None:
    assert home_of("sequence \udcff\0", [0, 1]) in (0, 1)
