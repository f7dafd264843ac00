"""Responses on their way from any thread to callbacks on the hub.

Source: docs/architecture.md section 3 point 3.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import Any

from core.inference.response import InferenceResponse, OnResponse
from core.waiting.hub_signal import HubSignal


class HubResponses:
    """Calls the callbacks of a hub's requests there, one after the other. Made on the hub's thread.

    Responses of other threads wake the hub once for all that have arrived until it looks.
    """

    def __init__(self, hub: Any) -> None:
        self._thread_id = get_ident()
        self._arrived: deque[tuple[OnResponse, InferenceResponse]] = deque()
        self._signal = HubSignal(hub, self._deliver)

    def callback(self, on_response: OnResponse) -> OnResponse:
        """What the engine may call on any thread, so that `on_response` is called on the hub."""
        return _Request(self, on_response).respond

    def close(self) -> None:
        """Deliver nothing from now on. On the hub's thread."""
        self._signal.close()

    def put(self, on_response: OnResponse, response: InferenceResponse) -> None:
        if get_ident() == self._thread_id:
            on_response(response)
            return
        self._arrived.append((on_response, response))
        if not self._signal.is_due:
            self._signal.send()

    def _deliver(self) -> None:
        arrived = self._arrived
        try:
            # Not those that arrive meanwhile: sockets have their turn first.
            for _ in range(len(arrived)):
                on_response, response = arrived.popleft()
                on_response(response)
        finally:
            if arrived:
                self._signal.send_after_io()


class _Request:
    __slots__ = ("_on_response", "_responses")

    def __init__(self, responses: HubResponses, on_response: OnResponse) -> None:
        self._responses = responses
        self._on_response = on_response

    def respond(self, response: InferenceResponse) -> None:
        self._responses.put(self._on_response, response)
