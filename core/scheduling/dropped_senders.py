"""Open requests that nobody can answer any more, because their sender was dropped before the final response."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from core.errors import BackendFailed
from core.scheduling.open_request import OpenRequest


class DroppedSenders:
    """Answers them with an error, on a thread of its own.

    The garbage collector may end a sender at any allocation, while its thread holds any lock. So nothing may be done
    there but `put`, which a `SimpleQueue` allows.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._dropped: SimpleQueue[OpenRequest | None] = SimpleQueue()
        self._own_thread = threading.Thread(target=self._answer, name=f"trident-{model}-dropped", daemon=True)

    def start(self) -> None:
        self._own_thread.start()

    def put(self, request: OpenRequest) -> None:
        """Fail `request`. Any thread, at any moment."""
        self._dropped.put(request)

    def close(self, timeout_s: float | None) -> bool:
        """Answer those that were put before, and end the thread. Returns whether it ended."""
        self._dropped.put(None)
        if self._own_thread.ident is not None:
            self._own_thread.join(timeout_s)
        return not self._own_thread.is_alive()

    def _answer(self) -> None:
        while (request := self._dropped.get()) is not None:
            reason = "the model dropped its response sender before the final response"
            error = BackendFailed(reason, model=self._model, hint="send the final flag with the last response")
            request.send(None, final=True, error=error)
            del request  # a waiting thread must not keep it alive
