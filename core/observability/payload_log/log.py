"""The queue between requests and the destination of their log.

No request waits for it: what has no room in memory is not recorded, and counted. Its threads make the documents and
give them to a Destination (core/observability/payload_log/destinations.py), which tries again while it fails.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from trident.core.borders import guarded
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.response import InferenceResponse, OnResponse
from trident.core.observability.payload_log.exchange import Exchange
from trident.core.observability.tracing.trace import Loss, TraceCounts, TraceMetrics
from trident.core.options import PayloadLogOptions

_log = logging.getLogger("trident.payload-log")

# Bytes of exchanges that are under way or wait to be written.
MOST_WAITING: Final = 64 << 20
_GATHER_SECONDS = 0.1
_AT_ONCE = 256
_WARN_SECONDS = 60.0


class Ending:
    """Tells the threads of a log to end, and how long they may still try to deliver. Any thread."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._until = 0.0

    def begin(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._begun.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end. Returns whether it has begun."""
        return self._begun.wait(seconds)

    def may_retry(self, seconds: float) -> bool:
        """Wait before another attempt. False if no time for one remains before the end."""
        if not self._begun.wait(seconds):
            return True
        left = self._until - time.monotonic()
        if left > 0:
            time.sleep(min(seconds, left, 0.2))
        return left > 0


class Destination(Protocol):
    def write(self, exchanges: Sequence[Exchange]) -> None:
        """Take the exchanges, which are counted as written or lost. Blocks while it cannot. May be none of them."""
        ...

    def close(self) -> None:
        """Write the rest; the last call."""
        ...


class PayloadLog:
    """Any thread may call any method."""

    def __init__(
        self,
        options: PayloadLogOptions,
        open_destination: Callable[[TraceCounts, Ending], Destination],
        threads: int = 1,
    ) -> None:
        """`open_destination` is called once for each of the `threads`."""
        self._options = options
        self._counts = TraceCounts()
        self._ending = Ending()
        self._waiting: deque[Exchange] = deque()
        self._lock = threading.Lock()
        self._held = 0
        self._warned_s = -_WARN_SECONDS
        destinations = [open_destination(self._counts, self._ending) for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name="trident-payload-log", daemon=True)
            for each in destinations
        ]
        for thread in self._threads:
            thread.start()

    # --- requests

    def begin(self, pending: PendingRequest, model: str, version: int) -> None:
        """Record a request that a client makes of a model, if it is sampled. Returns normally."""
        if pending.is_logged or pending.is_nested:
            return
        pending.is_logged = True  # another version may get it, after this one was unloaded
        sample = self._options.sample
        if sample >= 1.0 or random.random() < sample:
            guarded(partial(self._begin, pending, model, version), "recording a request")

    def _begin(self, pending: PendingRequest, model: str, version: int) -> None:
        if self._held >= MOST_WAITING:
            self._note_full()
            return
        exchange = Exchange(pending.request, model, version, self._options.max_bytes)
        if self._take_room(exchange.size):
            pending.on_response = partial(self._respond, exchange, pending.on_response)

    def _respond(self, exchange: Exchange, on_response: OnResponse, response: InferenceResponse) -> None:
        """Keep the response and pass it on. Only requests that are recorded pay for it. Any thread, one at a time."""
        if not exchange.is_lost:
            guarded(partial(self._keep, exchange, response), "recording a response")
        on_response(response)

    def _keep(self, exchange: Exchange, response: InferenceResponse) -> None:
        try:
            size = exchange.add(response)
        except Exception:
            exchange.is_lost = True
            self._give_room(exchange.size)
            self._counts.add_lost(Loss.NOT_WRITTEN)
            raise
        if size and not self._take_room(size):
            exchange.is_lost = True
            self._give_room(exchange.size - size)
        elif response.final:
            self._waiting.append(exchange)

    def _take_room(self, size: int) -> bool:
        with self._lock:
            has_room = self._held + size <= MOST_WAITING
            if has_room:
                self._held += size
        if not has_room:
            self._note_full()
        return has_room

    def _note_full(self) -> None:
        self._counts.add_lost(Loss.QUEUE_FULL)
        now = time.monotonic()
        with self._lock:
            if now - self._warned_s < _WARN_SECONDS:
                return
            self._warned_s = now
        _log.warning(
            "%d requests are missing in the payload log so far: %s does not take them fast enough; "
            "--payload-log-sample records fewer",
            self._counts.metrics().lost[Loss.QUEUE_FULL],
            self._options.target,
        )

    def _give_room(self, size: int) -> None:
        with self._lock:
            self._held -= size

    # --- the threads

    def _run(self, destination: Destination) -> None:
        has_ended = False
        while not has_ended:
            has_ended = self._ending.wait(_GATHER_SECONDS)
            guarded(partial(self._write, destination), "writing the payload log")
        guarded(destination.close, "writing the payload log")

    def _write(self, destination: Destination) -> None:
        is_empty = False
        while not is_empty:
            taken: list[Exchange] = []
            with suppress(IndexError):  # what one thread sees there another one may take
                while len(taken) < _AT_ONCE:
                    taken.append(self._waiting.popleft())
            is_empty = len(taken) < _AT_ONCE
            has_counted = False
            try:
                destination.write(taken)
                has_counted = True
            finally:
                self._give_room(sum(exchange.size for exchange in taken))
                if not has_counted:
                    self._counts.add_lost(Loss.NOT_WRITTEN, len(taken))

    # --- the end

    def metrics(self) -> TraceMetrics:
        return self._counts.metrics()

    def close(self, timeout_s: float) -> None:
        """Deliver the recorded exchanges, for at most `timeout_s` seconds. Blocks."""
        self._ending.begin(timeout_s)
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until + 0.2 - time.monotonic()))
        self._counts.add_lost(Loss.NOT_WRITTEN, len(self._waiting))
        lost = sum(self._counts.metrics().lost.values())
        if lost or any(thread.is_alive() for thread in self._threads):
            text = "the payload log has ended without %d requests or more that %s did not take"
            _log.warning(text, lost, self._options.target)
