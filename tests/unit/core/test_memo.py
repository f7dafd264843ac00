"""Dicts of bounded size."""

from __future__ import annotations

from trident.core.memo import AdaptiveMemo, Memo


def test_full_memo_starts_again_with_the_new_entry() -> None:
    memo: Memo[int, int] = Memo(3)
    for number in range(3):
        memo[number] = number
    assert memo == {0: 0, 1: 1, 2: 2}
    memo[3] = 3
    assert memo == {3: 3}


def learn(memo: AdaptiveMemo[int], count: int, first: int = 0, *, again: bool = False) -> int:
    """How many of `count` new texts were wanted; with `again` each of them is repeated once."""
    wanted = 0
    for number in range(first, first + count):
        if memo.is_learning():
            memo[number] = number
            wanted += 1
        if again:
            memo.hits += number in memo
    return wanted


def test_adaptive_memo_stays_bounded() -> None:
    memo: AdaptiveMemo[int] = AdaptiveMemo()
    for number in range(5000):
        memo[number] = number
        assert len(memo) <= 512
    assert memo.get(4999) == 4999


def test_adaptive_memo_pauses_while_no_text_is_repeated() -> None:
    memo: AdaptiveMemo[int] = AdaptiveMemo()
    assert learn(memo, 100_000) < 10_000
    assert learn(memo, 10_000, first=200_000) > 0


def test_adaptive_memo_learns_again_after_a_pause() -> None:
    memo: AdaptiveMemo[int] = AdaptiveMemo()
    learn(memo, 600)
    assert not memo.is_learning()
    while not memo.is_learning():
        pass
    memo["a"] = 1
    assert memo.get("a") == 1
