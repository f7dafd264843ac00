from __future__ import annotations

from trident.core.inference.pending_request import Deferred


def test_run_makes_each_call_once_and_calls_added_meanwhile() -> None:
    deferred = Deferred()
    made: list[str] = []

    def first() -> None:
        made.append("first")
        deferred.add(second)

    def second() -> None:
        made.append("second")

    deferred.add(first)
    deferred.add(first)
    assert made == []
    deferred.run()
    assert made == ["first", "second"]
    deferred.run()
    assert len(made) == 2
