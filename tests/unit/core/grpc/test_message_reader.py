from __future__ import annotations

from typing import Any

import numpy as np

from trident.core.frontend.request import ALIGNMENT
from trident.core.grpc.call import MessageReader

SIZE = 100_000


def test_a_message_that_comes_slowly_leaves_the_memory_that_others_need() -> None:
    given: list[Any] = []

    def allocate(size: int) -> Any:
        given.append(np.zeros(size, np.uint8))
        return given[-1]

    reader = MessageReader(SIZE, allocate, lambda size: 0)
    content = bytes(range(250)) * (SIZE // 250)
    assert reader.take(b"\0" + SIZE.to_bytes(4, "big") + content[:1000]) == []
    reader.leave_shared()  # it may have begun a moment ago
    assert reader.take(content[1000:2000]) == []
    (shared,) = given
    assert content[:2000] in shared.tobytes()
    reader.leave_shared()
    (message,) = reader.take(content[2000:])
    assert message.content == content
    assert not shared[2000 + ALIGNMENT :].any()
    assert len(given) == 1
