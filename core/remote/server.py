"""The engine's side of the socket: takes front ends, reads what they ask, pushes what they must know.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from core.engine.in_process import InferenceEngine
from core.lifecycle.serving_phase import Phase
from core.remote.calls.calls import Call, decode_call, encode_failure, encode_result
from core.remote.calls.serialization import to_plain, write_plain
from core.remote.engine_state import EngineState
from core.remote.front_end import FrontEnd
from core.remote.transport.frames import STATE, BadFrame, frame

_log = logging.getLogger("trident.engine")

_LOOK_SECONDS = 0.05
_CALLS_AT_ONCE = 64
# More than any server has; those that say nothing must not take all descriptors.
_MOST_FRONT_ENDS = 256
_GREETING_SECONDS = 5.0
# One that cannot start must not keep the others from serving.
_GATHERING_SECONDS = 10.0
_PATIENCE_SECONDS = 60.0
_PEER = struct.Struct("3i")

OnChange = Callable[[str, list[Any]], None]


class EngineServer:
    """Serves `engine` to the front ends that connect to `listener`, a listening Unix socket of this user's.

    `on_change` is told the name and the arguments of every call that changed which models are loaded, on the thread of
    the call. `is_restoring` says whether what was loaded before is still being loaded: until then nobody is ready.
    Nor is anybody until `expected` front ends have come, or had `gathering_s` seconds to: who hears of one that the
    server is ready may reach another next.
    A front end is cut off if it does not say who it is within `greeting_s` seconds, and if it takes nothing of what is
    sent to it for `patience_s`.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        listener: socket.socket,
        *,
        on_change: OnChange | None = None,
        is_restoring: Callable[[], bool] = lambda: False,
        expected: int = 0,
        gathering_s: float = _GATHERING_SECONDS,
        greeting_s: float = _GREETING_SECONDS,
        patience_s: float = _PATIENCE_SECONDS,
    ) -> None:
        self._engine = engine
        self._listener = listener
        self._on_change = on_change
        self._is_restoring = is_restoring
        self._missing = expected
        self._gathered_by = time.monotonic() + gathering_s
        self._greeting_s = greeting_s
        self._patience_s = patience_s
        self._poll = select.epoll()
        self._front_ends: dict[int, FrontEnd] = {}
        self._blocking = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="trident-call")
        self._pushing = threading.Lock()
        self._pushed: EngineState | None = None
        self._is_stopping = False
        # Monotonic seconds when something last came.
        self.last_work = 0.0
        self._thread = threading.Thread(target=self._serve, name="trident-front-ends", daemon=True)

    def start(self) -> None:
        """Begin to serve, on a thread of its own."""
        self._listener.setblocking(False)
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        self._thread.start()

    def stop(self) -> None:
        """Send what waits, as far as it is taken, and end all connections. Blocks until the thread has ended."""
        self._is_stopping = True
        self._thread.join()
        self._listener.close()  # first: a front end that is cut off must not come back to one that ends
        self._blocking.shutdown(wait=False, cancel_futures=True)
        for front_end in list(self._front_ends.values()):
            front_end.flush()
            self._end(front_end)
        self._poll.close()

    def push_state(self) -> None:
        """Tell all front ends what they must know, if it has changed. Any thread."""
        engine = self._engine
        with self._pushing:  # the look included: what another thread saw before must not be sent after this
            must_wait = self._is_restoring() or self._is_gathering()
            phase = engine.phase()
            state = EngineState(
                live=engine.is_live(),
                ready=engine.is_ready() and not must_wait,
                generation=engine.generation,
                phase=replace(phase, name=Phase.LOADING) if must_wait and phase.name == Phase.READY else phase,
            )
            if state == self._pushed:
                return
            self._pushed = state
            content = _state_frame(state)
            for front_end in list(self._front_ends.values()):
                if front_end.is_welcome:
                    front_end.send(content)

    # --- the thread

    def _serve(self) -> None:
        poll, listener = self._poll, self._listener.fileno()
        next_look = 0.0
        while not self._is_stopping:
            ready = poll.poll(_LOOK_SECONDS)
            for descriptor, events in ready:
                if descriptor == listener:
                    self._accept()
                    continue
                front_end = self._front_ends.get(descriptor)
                if front_end is None:
                    continue
                if events & select.EPOLLOUT:
                    front_end.flush()
                if events & ~select.EPOLLOUT:
                    self._read(front_end)
            now = time.monotonic()
            if ready:
                self.last_work = now
            if now >= next_look:
                next_look = now + _LOOK_SECONDS
                poll.modify(listener, select.EPOLLIN)
                self._part_with_idle(now)
                self.push_state()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is left: the thread must not spin until there is one
            _log.error("a front end could not be accepted: %s", error)
            self._poll.modify(self._listener.fileno(), 0)
            return
        _, user, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user not in (os.getuid(), 0):
            _log.warning("a connection of user %d was refused: front ends run as user %d", user, os.getuid())
            sock.close()
            return
        if len(self._front_ends) >= _MOST_FRONT_ENDS:
            _log.warning("a connection was refused: there are %d", _MOST_FRONT_ENDS)
            sock.close()
            return
        sock.setblocking(False)
        front_end = FrontEnd(sock, self._engine, self._called, self._watch)
        self._front_ends[sock.fileno()] = front_end
        self._poll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, front_end: FrontEnd) -> None:
        was_welcome = front_end.is_welcome
        try:
            goes_on = front_end.read()
        except BadFrame as error:
            _log.error("a front end was cut off, it sent %s", str(error))  # not the error, which knows the arena
            goes_on = False
        except Exception:  # the request boundary: whatever one of them sends, the others are served on
            _log.exception("a front end was cut off, what it sent led to an unexpected error")
            goes_on = False
        if not goes_on:
            self._end(front_end)
        elif front_end.is_welcome and not was_welcome:
            with self._pushing:
                if self._pushed is not None:
                    front_end.send(_state_frame(self._pushed))
            self._missing -= 1
            self.push_state()

    def _is_gathering(self) -> bool:
        return self._missing > 0 and time.monotonic() < self._gathered_by

    def _end(self, front_end: FrontEnd) -> None:
        descriptor = front_end.sock.fileno()
        self._front_ends.pop(descriptor, None)
        self._poll.unregister(descriptor)
        front_end.close()

    def _part_with_idle(self, now: float) -> None:
        """End the connections of those that say nothing at first, or take nothing later."""
        for front_end in list(self._front_ends.values()):
            if not front_end.is_welcome and now - front_end.since > self._greeting_s:
                _log.error("a front end was cut off, it did not say within %g s who it is", self._greeting_s)
                self._end(front_end)
            elif front_end.is_blocked and now - front_end.since > self._patience_s:
                _log.error("a front end was cut off, it took nothing of what was sent for %g s", self._patience_s)
                self._end(front_end)

    def _watch(self, front_end: FrontEnd, blocked: bool) -> None:
        """Any thread: the thread of `_serve` sends the rest. It reads nothing more meanwhile: who does not take answers
        must not be able to ask for ever more of them."""
        with contextlib.suppress(OSError):  # it is on its way out
            self._poll.modify(front_end.sock.fileno(), select.EPOLLOUT if blocked else select.EPOLLIN)

    # --- calls

    def _called(self, front_end: FrontEnd, number: int, content: memoryview) -> None:
        try:
            call, arguments = decode_call(content)
        except ValueError as error:
            raise BadFrame(f"a call that cannot be: {error}") from None
        if call.mark.blocks:
            self._blocking.submit(self._run, front_end, number, call, arguments)
        else:
            self._run(front_end, number, call, arguments)

    def _run(self, front_end: FrontEnd, number: int, call: Call, arguments: list[Any]) -> None:
        try:
            value = call.ask(self._engine, arguments)
            if call.mark.changes_models:
                # The other front ends must know of the change before the caller does.
                if self._on_change is not None:
                    self._on_change(call.name, arguments)
                self.push_state()
            content = encode_result(call, value)
        except Exception as error:  # whatever it is, the caller waits for an answer
            front_end.result(number, encode_failure(error))
        else:
            front_end.result(number, content)


def _state_frame(state: EngineState) -> bytes:
    return frame(STATE, 0, (write_plain(to_plain(state)),))
