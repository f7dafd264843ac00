"""A dict of bounded size."""

from __future__ import annotations

from trident.core.memo import Memo


def test_memo_remembers_up_to_its_limit() -> None:
    memo: Memo[int, str] = Memo(3)
    for number in range(3):
        memo[number] = str(number)
    assert memo == {0: "0", 1: "1", 2: "2"}
    assert memo.get(7) is None


def test_full_memo_starts_again_with_the_new_entry() -> None:
    memo: Memo[int, int] = Memo(3)
    for number in range(4):
        memo[number] = number
    assert memo == {3: 3}
