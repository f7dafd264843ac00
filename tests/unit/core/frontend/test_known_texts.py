from __future__ import annotations

from trident.core.frontend.request import KnownTexts


def learn(texts: KnownTexts[int], count: int, first: int = 0, *, again: bool = False) -> int:
    """How many of `count` new texts were wanted; with `again` each of them is repeated once."""
    wanted = 0
    for number in range(first, first + count):
        if texts.is_learning():
            texts[number] = number
            wanted += 1
        if again:
            texts.hits += number in texts
    return wanted


def test_known_texts_returns_what_it_learned() -> None:
    texts: KnownTexts[int] = KnownTexts()
    assert texts.get("a") is None
    texts["a"] = 7
    assert texts.get("a") == 7


def test_known_texts_stays_bounded() -> None:
    texts: KnownTexts[int] = KnownTexts()
    for number in range(5000):
        texts[number] = number
        assert len(texts) <= 512
    assert texts.get(4999) == 4999


def test_known_texts_pauses_while_no_text_is_repeated() -> None:
    texts: KnownTexts[int] = KnownTexts()
    assert learn(texts, 100_000) < 10_000
    assert learn(texts, 10_000, first=200_000) > 0


def test_known_texts_goes_on_learning_while_texts_are_repeated() -> None:
    texts: KnownTexts[int] = KnownTexts()
    assert learn(texts, 10_000, again=True) == 10_000


def test_known_texts_learns_again_after_a_pause() -> None:
    texts: KnownTexts[int] = KnownTexts()
    learn(texts, 600)
    assert not texts.is_learning()
    while not texts.is_learning():
        pass
    texts["a"] = 1
    assert texts.get("a") == 1
