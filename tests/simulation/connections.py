"""Sockets in memory between a front end and the engine: what is sent arrives in pieces, later, or never.

The core gets these names where it says `socket` and `select`. There is no shared memory: all tensors are in frames.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tests.simulation.models import milliseconds
from tests.simulation.threads import SimulatedThread, World, wake_all, worlds
from trident.core.lifecycle.state import Phase, ServingPhase
from trident.core.observability.switches import TraceGate
from trident.core.remote.engine_client import RemoteEngine
from trident.core.waiting import ThreadMailbox

CAPACITY = 2000
"""The bytes that a socket takes before they are read."""
READ, WRITE = 1, 4


class Network:
    """The sockets of a world, by number, and those that listen, by path."""

    def __init__(self) -> None:
        self.sockets: list[Socket] = []
        self.listeners: dict[str, Socket] = {}
        self.waiting: list[SimulatedThread] = []

    def cut(self) -> None:
        """End every connection, for both sides."""
        for sock in self.sockets:
            if sock.peer is not None:
                sock.is_cut = True
        wake_all(self.waiting)


class Socket:
    def __init__(self, *_: object) -> None:
        self._world: World = worlds[-1]
        self._network: Network = self._world.network
        self._number = len(self._network.sockets)
        self._network.sockets.append(self)
        self.peer: Socket | None = None
        self.accepted: list[Socket] = []
        self.is_cut = False
        self._is_closed = False
        # What was sent, and when it arrives.
        self._arriving: list[tuple[int, bytes]] = []

    def setblocking(self, blocking: bool) -> None:
        assert not blocking

    def fileno(self) -> int:
        return -1 if self._is_closed else self._number

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return struct.pack("3i", os.getpid(), os.getuid(), 0)

    def listen(self, path: str) -> None:
        self._network.listeners[path] = self

    def connect(self, path: str) -> None:
        listener = self._network.listeners.get(path)
        if listener is None or listener._is_closed:
            raise ConnectionRefusedError(path)
        self.peer = Socket()
        self.peer.peer = self
        listener.accepted.append(self.peer)
        wake_all(self._network.waiting)

    def accept(self) -> tuple[Socket, str]:
        if not self.accepted:
            raise BlockingIOError
        return self.accepted.pop(0), ""

    def send(self, content: bytes | memoryview, flags: int = 0) -> int:
        peer = self.peer
        if peer is None or peer._is_closed or self.is_cut:
            raise BrokenPipeError
        space = CAPACITY - sum(len(piece) for _, piece in peer._arriving)
        if space <= 0:
            raise BlockingIOError
        random = self._world.random
        size = min(len(content), space)
        if random.random() < 0.3:
            size = 1 + int(random.random() * size)
        self.put(bytes(content[:size]))
        return size

    def put(self, content: bytes) -> None:
        """Have the other end receive `content`, after what was sent before."""
        assert self.peer is not None
        arriving = self.peer._arriving
        arrives_ns = self._world.now_ns + milliseconds(self._world.random, 0, 0, 0, 1)
        arriving.append((max(arrives_ns, arriving[-1][0] if arriving else 0), content))
        wake_all(self._network.waiting)

    def recv_into(self, view: memoryview, size: int = 0, flags: int = 0) -> int:
        if not self._has_arrived:
            if self._has_ended:
                return 0
            raise BlockingIOError
        arrives_ns, piece = self._arriving[0]
        taken = len(piece)
        if self._world.random.random() < 0.3:
            taken = 1 + int(self._world.random.random() * taken)
        view[:taken] = piece[:taken]
        self._arriving[:1] = [(arrives_ns, piece[taken:])] if taken < len(piece) else []
        wake_all(self._network.waiting)
        return taken

    def receive_whole(self) -> bytes:
        """The first thing that was sent, in one piece."""
        if not self._has_arrived:
            raise ConnectionResetError if self._has_ended else BlockingIOError
        return self._arriving.pop(0)[1]

    def shutdown(self, how: int) -> None:
        self.is_cut = True
        if self.peer is not None:
            self.peer.is_cut = True
        wake_all(self._network.waiting)

    def close(self) -> None:
        self._is_closed = True
        wake_all(self._network.waiting)

    # --- for waiting threads

    @property
    def _has_arrived(self) -> bool:
        return bool(self._arriving) and self._arriving[0][0] <= self._world.now_ns

    @property
    def _has_ended(self) -> bool:
        return self.is_cut or (self.peer is not None and self.peer._is_closed)

    def events(self) -> int:
        """The operations that are possible now: READ, WRITE or both."""
        peer = self.peer
        reads = bool(self.accepted) or self._has_arrived or (not self._arriving and self._has_ended)
        full = peer is not None and not self._has_ended and sum(len(piece) for _, piece in peer._arriving) >= CAPACITY
        return (READ if reads else 0) | (0 if full else WRITE)

    def next_ns(self) -> int | None:
        """When something arrives."""
        return self._arriving[0][0] if self._arriving and not self._has_arrived else None


def wait_for(
    interest: Callable[[], dict[Socket, int]], timeout_s: float, extra: Callable[[], bool]
) -> dict[Socket, int]:
    """Block until a socket is ready for its operations, until `extra`, or for `timeout_s` seconds."""
    world: World = worlds[-1]
    until_ns = world.now_ns + round(timeout_s * 1e9)
    while True:
        wanted = interest()
        ready = {sock: events for sock, want in wanted.items() if (events := sock.events() & want)}
        if ready or extra() or world.now_ns >= until_ns:
            return ready
        arrivals = [at for sock in wanted if (at := sock.next_ns()) is not None]
        thread = world.current
        world.network.waiting.append(thread)
        world.block(min([until_ns, *arrivals]))
        if thread in world.network.waiting:
            world.network.waiting.remove(thread)


class Epoll:
    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}

    def register(self, number: int, events: int) -> None:
        self._wanted[number] = events

    def modify(self, number: int, events: int) -> None:
        if number not in self._wanted:
            raise FileNotFoundError
        self._wanted[number] = events
        wake_all(worlds[-1].network.waiting)

    def unregister(self, number: int) -> None:
        del self._wanted[number]

    def close(self) -> None:
        self._wanted.clear()

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        sockets = worlds[-1].network.sockets
        ready = wait_for(lambda: {sockets[n]: want for n, want in self._wanted.items()}, timeout_s, lambda: False)
        return [(sock.fileno(), events) for sock, events in ready.items()]


class Link:
    """Implements the Link of a front end: a thread that drives the connection."""

    def __init__(self) -> None:
        self._is_asked = self._is_closing = False
        self._own_thread = SimulatedThread(name="link")
        self._engine: Any = None

    def start(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._own_thread.target = self._drive
        self._own_thread.start()

    def wake(self) -> None:
        self._is_asked = True
        wake_all(worlds[-1].network.waiting)

    def mailbox(self) -> ThreadMailbox[Any]:
        return ThreadMailbox()

    def close(self) -> None:
        self._is_closing = True
        self.wake()
        self._own_thread.join()

    def _wanted(self) -> dict[Socket, int]:
        sock = self._engine.sock
        return {} if sock is None else {sock: READ | (WRITE if self._engine.wants_to_write else 0)}

    def _drive(self) -> None:
        engine = self._engine
        while not self._is_closing:
            engine.look()
            sock = engine.sock
            ready = wait_for(self._wanted, 0.05, lambda: self._is_asked)
            if self._is_asked:
                self._is_asked = False
                engine.flush()
            events = ready.get(sock, 0)
            if events & WRITE:
                engine.flush()
            if events & READ:
                engine.read()


class Memory:
    """`SharedMemory` without room: everything travels in frames."""

    descriptor = 0
    pages = SimpleNamespace(capacity=0, allocate=lambda size: None)

    @classmethod
    def create(cls, size: int) -> Memory:
        return cls()

    attach = create

    def received(self, offset: int, size: int) -> Any:
        raise AssertionError("nothing is in shared memory")

    def release(self, kind: int) -> bytes:
        return b""

    def offset_of(self, content: object) -> None: ...

    def share(self, content: object) -> None: ...

    def close(self) -> None: ...


def _send_fds(sock: Socket, contents: Sequence[bytes], descriptors: Sequence[int]) -> None:
    sock.put(b"".join(contents))


def _receive_fds(sock: Socket, size: int, count: int) -> tuple[bytes, list[int], int, None]:
    return sock.receive_whole(), [0], 0, None


SOCKET = SimpleNamespace(
    AF_UNIX=0, SOCK_STREAM=0, MSG_DONTWAIT=0, socket=Socket, send_fds=_send_fds, recv_fds=_receive_fds
)
SELECT = SimpleNamespace(epoll=Epoll, EPOLLIN=READ, EPOLLOUT=WRITE)


class Engine:
    """The part of an engine that the engine's server uses."""

    def __init__(self, find: Callable[[str, int], Any]) -> None:
        self.model = find
        self.generation = 1
        self.trace_gate = TraceGate()

    def model_spec(self, name: str, version: int = -1) -> Any:
        return self.model(name, version).spec

    def is_live(self) -> bool:
        return True

    def is_ready(self) -> bool:
        return True

    def phase(self) -> ServingPhase:
        return ServingPhase(name=Phase.READY)
