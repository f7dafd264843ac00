"""The sender that a backend instance gets for each request of an execution."""

from __future__ import annotations

from collections.abc import Callable

from core.errors import ServerError
from core.inference.request import Parameter
from core.inference.response import Outputs
from core.scheduling.dropped_senders import DroppedSenders
from core.scheduling.open_request import OpenRequest


class RequestSender:
    """Implements ResponseSender. Only the backend instance refers to it, so that the request learns of its end."""

    __slots__ = ("_dropped", "_is_over", "_request")

    def __init__(self, request: OpenRequest, dropped: DroppedSenders) -> None:
        self._request = request
        self._dropped = dropped
        self._is_over = False

    def __del__(self) -> None:
        if not (self._is_over or self._request.is_closed):
            self._dropped.put(self._request)

    def end(self) -> None:
        """Send nothing any more: the request is executed again, with another sender."""
        self._is_over = True

    @property
    def is_cancelled(self) -> bool:
        return self._request.is_cancelled

    @property
    def is_full(self) -> bool:
        return self._request.is_full

    def send(
        self,
        outputs: Outputs | None,
        *,
        final: bool = False,
        error: ServerError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        if not self._is_over:
            self._request.send(outputs, final, error, parameters)

    def watch(self, callback: Callable[[], None]) -> None:
        self._request.watch(callback)
