from __future__ import annotations

from core.http.v2.known_texts import KnownTexts


def learn(texts: KnownTexts[int], count: int, first: int = 0, *, again: bool = False) -> int:
    """How many of `count` new ones were wanted; `again`: each of them comes a second time."""
    wanted = 0
    for number in range(first, first + count):
        if texts.is_learning():
            texts.put(number, number)
            wanted += 1
        if again:
            texts.get(number)
    return wanted


def test_what_was_learnt_is_known() -> None:
    texts: KnownTexts[int] = KnownTexts()
    assert texts.get("a") is None
    texts.put("a", 7)
    assert texts.get("a") == 7


def test_it_stays_bounded() -> None:
    texts: KnownTexts[int] = KnownTexts()
    for number in range(5000):
        texts.put(number, number)
        assert len(texts) <= 512
    assert texts.get(4999) == 4999


def test_it_rests_while_nothing_comes_again_and_tries_now_and_then() -> None:
    texts: KnownTexts[int] = KnownTexts()
    assert learn(texts, 100_000) < 10_000
    assert learn(texts, 10_000, first=200_000) > 0


def test_it_does_not_rest_while_what_it_knows_is_of_use() -> None:
    texts: KnownTexts[int] = KnownTexts()
    assert learn(texts, 10_000, again=True) == 10_000


def test_it_is_of_use_again_after_a_rest() -> None:
    texts: KnownTexts[int] = KnownTexts()
    learn(texts, 600)
    assert not texts.is_learning()
    while not texts.is_learning():
        pass
    texts.put("a", 1)
    assert texts.get("a") == 1
