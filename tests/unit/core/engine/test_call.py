from __future__ import annotations

from trident.core.engine.protocol import CallMark, call, mark_of


def test_a_marked_method_stays_the_same_function() -> None:
    def method(self: object, name: str) -> None: ...

    assert mark_of(method) is None
    assert call(blocks=True)(method) is method
    assert mark_of(method) == CallMark(blocks=True)
